"""What an agent has changed: the list, and the patch that ``git apply`` takes.

For an overlay both are read from its upper directory.  A read-only workspace has no changes; a ``direct`` one is the
repo itself, whose history alone can tell.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from orchestrator.contract.runs import FileChange
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.workspace.linediff import Budget
from orchestrator.workspace.patch import file_patch, marker
from orchestrator.workspace.tree import Difference, Whiteout, differences, is_whiteout

MAX_PATCH_BYTES = 64 * 1024**2
"""Once a patch has grown to this, the content of the files that follow is left out (with git's marker for it)."""
T = TypeVar("T")


async def list_changes(mount: WorkspaceMount, *, whiteout: Whiteout = is_whiteout) -> list[FileChange]:
    """The changed files, sorted by path; line counts are 0 for binary ones.

    Pipes, sockets and directories that cannot be looked into are listed too (binary, without a size).  Raises
    InvalidRequestError for ``direct`` and StorageError when the workspace or the repo has gone.
    """
    return await _off_loop(mount, _list, whiteout) or []


async def unified_patch(mount: WorkspaceMount, *, whiteout: Whiteout = is_whiteout) -> bytes:
    """All changes in git's patch format.  Raises as ``list_changes`` does."""
    return await _off_loop(mount, _patch, whiteout) or b""


async def _off_loop(mount: WorkspaceMount, fold: Callable[[Iterator[Difference]], T], whiteout: Whiteout) -> T | None:
    if mount.mode == "readonly":
        return None
    upper = mount.upper
    if mount.mode == "direct" or upper is None:
        raise InvalidRequestError(
            "the agent worked directly in the repo, so podmentor has no record of its changes: "
            f"use git there (git -C {mount.source} status, git diff)"
        )
    stop = threading.Event()

    def work() -> T:
        try:
            return fold(_until(stop, differences(upper, mount.source, whiteout=whiteout)))
        except OSError as error:
            raise StorageError(f"the workspace cannot be compared with {mount.source}: {error.strerror}") from error

    try:
        return await asyncio.to_thread(work)
    finally:
        stop.set()  # a caller that has gone away need not wait for the end of a long walk


def _until(stop: threading.Event, found: Iterator[Difference]) -> Iterator[Difference]:
    for difference in found:
        if stop.is_set():
            return
        yield difference


def _list(found: Iterator[Difference]) -> list[FileChange]:
    budget = Budget()
    out = []
    for difference in found:
        before, after = difference.before, difference.after
        patch = file_patch(difference, budget)
        out.append(
            FileChange(
                path=difference.path.decode("utf-8", "surrogateescape"),
                change="added" if before is None else "deleted" if after is None else "modified",
                size=after.size if after else None,
                binary=patch.binary,
                insertions=patch.insertions,
                deletions=patch.deletions,
            )
        )
    return sorted(out, key=lambda change: change.path)


def _patch(found: Iterator[Difference]) -> bytes:
    budget = Budget()
    out = bytearray()
    for difference in found:
        text = file_patch(difference, budget).text
        out += text if len(out) + len(text) <= MAX_PATCH_BYTES else marker(difference)
    return bytes(out)
