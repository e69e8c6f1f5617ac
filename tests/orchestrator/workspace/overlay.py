"""Overlays made by hand, and the workspaces over them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchestrator.config.models import Paths
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
from orchestrator.workspace import DirectoryWorkspaces
from orchestrator.workspace.apply import base_record
from tests.orchestrator.workspace.trees import Tree, fake_whiteout, make, make_upper

EARLIER = (datetime.now(UTC) - timedelta(days=1)).isoformat()
LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()
"""A run that began "later" than everything here: no file of the repo counts as changed while it went on."""
ALL = ChangeSelection(ignored=True)


async def no_delete(path: Path) -> None:
    raise AssertionError(f"{path} should have been removed without help")


def nanoseconds(at: str) -> int:
    """An RFC 3339 time as nanoseconds since 1970."""
    return int(datetime.fromisoformat(at).timestamp() * 1_000_000) * 1000


def workspaces(state: Path = Path("/nonexistent")) -> DirectoryWorkspaces:
    return DirectoryWorkspaces(Paths(state_dir=state, runtime_dir=state / "run"), no_delete, whiteout=fake_whiteout)


async def list_changes(mount: WorkspaceMount) -> list[FileChange]:
    return await workspaces().list_changes(mount)


async def unified_patch(mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> bytes:
    return await workspaces().unified_patch(mount, selection)


async def list_commits(mount: WorkspaceMount) -> list[CommitInfo]:
    return await workspaces().list_commits(mount)


async def export_commits(mount: WorkspaceMount, form: CommitsForm) -> bytes:
    return await workspaces().export_commits(mount, form)


class Overlay:
    """``repo`` and a subagent's directory over it."""

    def __init__(self, top: Path) -> None:
        self.repo = top / "repo"
        self.base = top / "subagents" / "subagent"
        self.upper = self.base / "upper"
        for directory in (self.repo, top / "subagents", self.base, self.upper, self.base / "work"):
            directory.mkdir()
        self.mount = WorkspaceMount(mode="overlay", source=self.repo, upper=self.upper, work=self.base / "work")
        self.workspaces = workspaces(top)

    @classmethod
    def of(cls, top: Path, old: Tree, new: Tree, seed: int = 0) -> Overlay:
        """The agent has turned ``old`` into ``new``, and its run has ended."""
        made = cls(top)
        make(made.repo, old)
        make_upper(made.upper, old, new, random.Random(seed))
        return made

    async def ended(self, run_id: str = "0" * 32, *, began_at: str = LATER) -> None:
        base_record.mark_beginning(self.base, nanoseconds(began_at))
        await self.workspaces.run_ended(self.mount, run_id=run_id)

    async def of_run(self, run_id: str) -> dict[str, str]:
        return await self.workspaces.changes_of_run(self.mount, run_id)

    async def rollback(self, run_id: str) -> list[str]:
        return await self.workspaces.rollback(self.mount, run_id)

    async def changes(self) -> list[FileChange]:
        return await self.workspaces.list_changes(self.mount)

    async def discard(self, *paths: str) -> list[str]:
        return await self.workspaces.discard_changes(self.mount, paths)

    async def apply(self, *paths: str, began_at: str = LATER, ignored: bool = True, **more: object) -> ApplyResult:
        request = ApplyRequest(selection=ChangeSelection(paths=paths, ignored=ignored), **more)  # type: ignore[arg-type]
        if self.mount.upper is not None:
            base_record.mark_beginning(self.base, nanoseconds(began_at))
        return await self.workspaces.apply(self.mount, request, author="claude-code")


def outcomes(result: ApplyResult) -> dict[str, str]:
    return {one.path: one.outcome for one in result.files}
