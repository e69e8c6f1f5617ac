"""What an agent has changed: the list, the patch that ``git apply`` takes, and the agent's own commits.

For an overlay all of it is read from its upper directory.  A read-only workspace has no changes; a ``direct`` one is
the repo itself, whose history alone can tell.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from orchestrator.contract.changes import EVERYTHING, ChangeSelection, CommitInfo, CommitsForm, FileChange
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import InvalidRequestError, NotFoundError, StorageError
from orchestrator.workspace.changes import commits
from orchestrator.workspace.changes.linediff import Budget
from orchestrator.workspace.changes.listing import Found, survey
from orchestrator.workspace.changes.patch import file_patch, marker
from orchestrator.workspace.changes.selection import Chosen
from orchestrator.workspace.overlay.diff import Difference, Whiteout, differences, is_whiteout, read_side
from orchestrator.workspace.sandboxed_git import GitError

MAX_PATCH_BYTES = 64 * 1024**2
"""Once a patch has grown to this, the content of the files that follow is left out (with git's marker for it)."""
PATCH_FILE_BYTES = 32 * 1024**2
"""Content of larger files is not in the patch."""
T = TypeVar("T")
Cut = Callable[[Iterator[Difference]], Iterator[Difference]]


async def list_changes(
    mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING, *, whiteout: Whiteout = is_whiteout
) -> list[FileChange]:
    """The changed files, sorted by path; line counts are 0 for binary ones.  Ignored files are among them, marked.

    Pipes, sockets and directories that cannot be looked into are listed too (binary, without a size).  Raises
    InvalidRequestError for ``direct`` and for a wrong path, StorageError when the workspace or the repo has gone.
    """
    chosen = Chosen(selection)

    def work(upper: Path, lower: Path, cut: Cut) -> list[FileChange]:
        found = survey(cut(differences(upper, lower, whiteout=whiteout)), upper=upper, lower=lower, whiteout=whiteout)
        return [one.change for one in found if _meant(one, chosen)]

    return await _off_loop(mount, work) or []


async def unified_patch(
    mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING, *, whiteout: Whiteout = is_whiteout
) -> bytes:
    """The chosen changes in git's patch format, binary content included; ignored files only when asked for.

    Raises as ``list_changes`` does.
    """
    chosen = Chosen(selection)

    def work(upper: Path, lower: Path, cut: Cut) -> bytes:
        found = survey(cut(differences(upper, lower, whiteout=whiteout)), upper=upper, lower=lower, whiteout=whiteout)
        wanted = {
            one.path: one
            for one in found
            if chosen.takes(one.path, one.origin.path if one.origin else None, ignored=one.change.ignored)
        }
        again = cut(differences(upper, lower, whiteout=whiteout, large=PATCH_FILE_BYTES))
        return _patch(again, wanted, lower)

    return await _off_loop(mount, work) or b""


async def list_commits(mount: WorkspaceMount) -> list[CommitInfo]:
    """The commits that the agent made, newest first.  Raises as ``list_changes`` does."""
    return await _off_loop(mount, lambda upper, lower, _: commits.listed(upper, lower)) or []


async def export_commits(mount: WorkspaceMount, form: CommitsForm) -> bytes:
    """The same as a bundle or as patches for ``git am``.  Raises NotFoundError when there are none."""
    data = await _off_loop(mount, lambda upper, lower, _: commits.exported(upper, lower, form))
    if not data:
        raise NotFoundError("the agent has made no commits in this workspace")
    return data


async def _off_loop(mount: WorkspaceMount, fold: Callable[[Path, Path, Cut], T]) -> T | None:
    if mount.mode == "readonly":
        return None
    upper, lower = mount.upper, mount.source
    if mount.mode == "direct" or upper is None:
        raise InvalidRequestError(
            "the agent worked directly in the repo, so podmentor has no record of its changes: "
            f"use git there (git -C {mount.source} status, git diff)"
        )
    stop = threading.Event()

    def work() -> T:
        try:
            return fold(upper, lower, lambda found: _until(stop, found))
        except OSError as error:
            raise StorageError(f"the workspace cannot be compared with {lower}: {error.strerror}") from error
        except GitError as error:
            raise StorageError(f"git cannot read what the agent left in {upper}: {error}") from error

    try:
        return await asyncio.to_thread(work)
    finally:
        stop.set()  # a caller that has gone away need not wait for the end of a long walk


def _until(stop: threading.Event, found: Iterator[Difference]) -> Iterator[Difference]:
    for difference in found:
        if stop.is_set():
            return
        yield difference


def _meant(one: Found, chosen: Chosen) -> bool:
    return chosen.covers(one.path) or (one.origin is not None and chosen.covers(one.origin.path))


def _patch(found: Iterator[Difference], wanted: dict[bytes, Found], lower: Path) -> bytes:
    budget = Budget()
    out = bytearray()
    for difference in found:
        one = wanted.get(difference.path)
        if one is None:
            continue
        origin = one.origin
        if origin is not None:
            before = read_side(lower, origin.path, PATCH_FILE_BYTES)
            difference = Difference(path=difference.path, before=before, after=difference.after)  # noqa: PLW2901
        text = file_patch(difference, budget, origin, with_binary=True).text
        out += text if len(out) + len(text) <= MAX_PATCH_BYTES else marker(difference, origin)
    return bytes(out)
