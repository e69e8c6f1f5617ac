"""Directories of runs and subagents, and what an agent has changed in them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run of a subagent mounts."""

    mount: WorkspaceMount
    home: Path


class Workspaces(Protocol):
    """Makes, reads and removes them.  ``source`` None: the subagent works in an empty directory of its own."""

    async def prepare(
        self, *, subagent_id: str, source: Path | None, mode: Literal["overlay", "copy", "direct", "readonly"]
    ) -> Prepared:
        """Make (or find) the directories of a subagent, ready for a run that begins now: what anybody changes in the
        repo from then on counts as changed while the agent worked.

        Raises InvalidRequestError, ConflictError (the subagent works on another repo), StorageError.
        """
        ...

    def mount_of(
        self, *, subagent_id: str, source: Path | None, mode: Literal["overlay", "copy", "direct", "readonly"]
    ) -> WorkspaceMount:
        """The mount of a prepared subagent without touching the disk."""
        ...

    async def discard(self, subagent_id: str) -> None:
        """Remove all directories of a subagent; fine when there are none."""
        ...

    async def make_control_dir(self, run_id: str, prompt: str) -> Path:
        """The run's control directory with the prompt in it."""
        ...

    async def remove_control_dir(self, run_id: str) -> None:
        """Remove it; fine when it is gone."""
        ...

    async def stale_control_dirs(self, active: set[str]) -> list[str]:
        """Runs that have a control directory and are not ``active``."""
        ...

    async def list_changes(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> list[FileChange]:
        """What the agent has changed, the ignored files included and marked."""
        ...

    async def unified_patch(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The same as a patch."""
        ...

    def exclusive(self, subagent_id: str) -> AbstractAsyncContextManager[None]:
        """Nobody else changes the workspace inside the block, and no run of the subagent is accepted meanwhile."""
        ...

    async def run_ended(self, mount: WorkspaceMount, *, run_id: str) -> None:
        """Record what the repo has where the agent changed something, and take a snapshot.

        No container may have the workspace mounted.  Raises StorageError.
        """
        ...

    async def apply(self, mount: WorkspaceMount, request: ApplyRequest, *, author: str) -> ApplyResult:
        """Bring changes into the repo.  Inside ``exclusive``, with no container running.

        ``author``: of the commit, for a branch.  Raises ConflictError, InvalidRequestError, StorageError.
        """
        ...

    async def discard_changes(self, mount: WorkspaceMount, paths: tuple[str, ...] = ()) -> list[str]:
        """Drop these changes (none named: all of them, the agent's commits too); the paths that were changed.

        Inside ``exclusive``, with no container running.  Raises ConflictError, InvalidRequestError, StorageError.
        """
        ...

    async def changes_of_run(self, mount: WorkspaceMount, run_id: str) -> dict[str, str]:
        """By path what the run did: ``changed``, ``deleted`` or ``restored``.  Raises NotFoundError."""
        ...

    async def rollback(self, mount: WorkspaceMount, run_id: str) -> list[str]:
        """Take the workspace back to the end of a run; paths that differ from the repo before or after.

        Inside ``exclusive``, with no container running.  Raises NotFoundError, InvalidRequestError, StorageError.
        """
        ...

    async def recover(self) -> dict[str, Literal["completed", "rolled_back"]]:
        """Finish what a crash interrupted; by subagent, how it ended."""
        ...

    async def list_commits(self, mount: WorkspaceMount) -> list[CommitInfo]:
        """The commits that the agent made, newest first."""
        ...

    async def export_commits(self, mount: WorkspaceMount, form: CommitsForm) -> bytes:
        """The same as a file.  Raises NotFoundError when there are none."""
        ...
