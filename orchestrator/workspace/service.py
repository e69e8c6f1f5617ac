"""The reviewing half of the workspaces: look at changes, take them into the repo.

What changes something runs inside ``exclusive``, so that no run is prepared meanwhile, and one apply at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from orchestrator.contract.changes import (
    EVERYTHING,
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
)
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.workspace import snapshot
from orchestrator.workspace.apply import transaction
from orchestrator.workspace.apply.rollback import recover
from orchestrator.workspace.changes import export
from orchestrator.workspace.overlay.diff import Whiteout, is_whiteout
from orchestrator.workspace.reviewer import Dropped, Reviewer
from orchestrator.workspace.sandboxed_git import SCRATCH_PREFIX
from orchestrator.workspace.setup.layout import as_prepared, removed

log = logging.getLogger(__name__)
T = TypeVar("T")


class Reviews:
    """``whiteout`` is another one only in tests that cannot make real ones."""

    def __init__(self, delete_tree: Callable[[Path], Awaitable[None]], *, whiteout: Whiteout = is_whiteout) -> None:
        self._delete_tree = delete_tree
        self._whiteout = whiteout
        self._locks: dict[str, asyncio.Lock] = {}
        self._applying = asyncio.Lock()

    @asynccontextmanager
    async def exclusive(self, subagent_id: str) -> AsyncIterator[None]:
        """Nobody else prepares or changes this workspace inside the block."""
        lock = self._locks.setdefault(subagent_id, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(subagent_id, None)

    async def list_changes(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> list[FileChange]:
        """The changed files.  Raises InvalidRequestError for ``direct``, StorageError when something is gone."""
        mount = await asyncio.to_thread(as_prepared, mount)
        return await export.list_changes(mount, selection, whiteout=self._whiteout)

    async def unified_patch(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The same as a patch in git's format."""
        mount = await asyncio.to_thread(as_prepared, mount)
        return await export.unified_patch(mount, selection, whiteout=self._whiteout)

    async def list_commits(self, mount: WorkspaceMount) -> list[CommitInfo]:
        """The commits that the agent made, newest first."""
        return await export.list_commits(await asyncio.to_thread(as_prepared, mount))

    async def export_commits(self, mount: WorkspaceMount, form: CommitsForm) -> bytes:
        """The same as a file.  Raises NotFoundError when there are none."""
        return await export.export_commits(await asyncio.to_thread(as_prepared, mount), form)

    async def run_ended(self, mount: WorkspaceMount, *, run_id: str, began_at: str) -> None:
        """Take down what the repo has where the agent changed something, and take a snapshot.  Raises StorageError."""
        if mount.upper is None:
            return
        await _worker(lambda: Reviewer(mount, self._whiteout).end_of_run(run_id, nanoseconds(began_at)))

    async def apply(self, mount: WorkspaceMount, request: ApplyRequest, *, began_at: str, author: str) -> ApplyResult:
        """Bring changes into the repo.  Raises ConflictError, InvalidRequestError, StorageError."""
        if mount.upper is None:
            raise InvalidRequestError(
                f"the workspace mode is {mount.mode}: there is no overlay, and so nothing that could be applied"
            )
        async with self._applying:
            return await _worker(
                lambda: Reviewer(mount, self._whiteout).apply(request, nanoseconds(began_at), author=author)
            )

    async def discard_changes(self, mount: WorkspaceMount, paths: tuple[str, ...] = ()) -> list[str]:
        """Drop changes.  Raises ConflictError, InvalidRequestError, StorageError."""
        if mount.upper is None:
            raise InvalidRequestError(f"the workspace mode is {mount.mode}: there is no overlay to drop changes from")
        review = await asyncio.to_thread(Reviewer, mount, self._whiteout)
        if paths:
            return await _worker(lambda: review.discard(paths))
        return await self._cleared(await _worker(review.discard_all))

    async def changes_of_run(self, mount: WorkspaceMount, run_id: str) -> dict[str, str]:
        """By path what the run changed.  Raises NotFoundError, StorageError."""
        if mount.upper is None:
            raise InvalidRequestError(f"the workspace mode is {mount.mode}: there is no overlay, and so no snapshot")
        base = mount.upper.parent
        return await asyncio.to_thread(lambda: snapshot.changes_of(snapshot.of_run(base, run_id)))

    async def rollback(self, mount: WorkspaceMount, run_id: str) -> list[str]:
        """Take the workspace back to the end of a run; the paths that were changed.  Raises NotFoundError."""
        if mount.upper is None:
            raise InvalidRequestError(f"the workspace mode is {mount.mode}: there is no overlay, and so no snapshot")
        review = await asyncio.to_thread(Reviewer, mount, self._whiteout)
        return await self._cleared(await _worker(lambda: review.rollback(run_id)))

    async def _cleared(self, dropped: Dropped) -> list[str]:
        if dropped.old is not None and not await asyncio.to_thread(removed, dropped.old):
            await self._delete_tree(dropped.old)
        return dropped.paths

    async def recover_in(self, subagents: Path) -> dict[str, Literal["completed", "rolled_back"]]:
        """Finish the applies that a crash interrupted, in all conversations below this directory."""
        return await asyncio.to_thread(_recover_all, subagents)


async def _worker(work: Callable[[], T]) -> T:
    """``work`` in a thread; a caller that is cancelled still holds its locks until the work is done."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


def nanoseconds(at: str) -> int:
    """An RFC 3339 time as nanoseconds since 1970."""
    return int(datetime.fromisoformat(at).timestamp() * 1_000_000) * 1000


def _recover_all(subagents: Path) -> dict[str, Literal["completed", "rolled_back"]]:
    found: dict[str, Literal["completed", "rolled_back"]] = {}
    for left in sorted(subagents.glob(f"*/{snapshot.NEXT}")):
        snapshot.finish(left.parent, f"{SCRATCH_PREFIX}old")
    for journal in sorted(subagents.glob(f"*/{transaction.DIRECTORY}")):
        try:
            how = recover(journal)
        except (OSError, StorageError):
            log.exception("the apply in %s was interrupted and cannot be finished yet", journal)
            continue
        if how != "nothing":
            log.warning("an interrupted apply of subagent %s was %s", journal.parent.name, how.replace("_", " "))
            found[journal.parent.name] = how
    return found
