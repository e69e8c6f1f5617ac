"""Workspaces as plain directories; overlays are only named, never mounted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from orchestrator.config.models import Paths
from orchestrator.contract.changes import (
    EVERYTHING,
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
    FileOutcome,
)
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.contract.workspace import Prepared
from orchestrator.errors import NotFoundError


class FakeWorkspaces:
    """Implements ``Workspaces``."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.discarded: list[str] = []
        self.locks: dict[str, asyncio.Lock] = {}
        self.ended: list[WorkspaceMount] = []
        self.applied: list[ApplyRequest] = []
        self.changes: list[FileChange] = []
        self.rolled_back: list[str] = []
        self.dropped: list[tuple[str, ...]] = []
        self.outcomes: tuple[FileOutcome, ...] = ()
        self.recovered: dict[str, Literal["completed", "rolled_back"]] = {}

    async def prepare(
        self, *, subagent_id: str, source: Path | None, mode: Literal["overlay", "copy", "direct", "readonly"]
    ) -> Prepared:
        root = self.paths.subagent_dir(subagent_id)
        for name in ("home", "upper", "work", "empty"):
            (root / name).mkdir(parents=True, exist_ok=True)
        return Prepared(mount=self.mount_of(subagent_id=subagent_id, source=source, mode=mode), home=root / "home")

    def mount_of(
        self, *, subagent_id: str, source: Path | None, mode: Literal["overlay", "copy", "direct", "readonly"]
    ) -> WorkspaceMount:
        root = self.paths.subagent_dir(subagent_id)
        return WorkspaceMount(
            mode="overlay" if mode == "copy" else mode,
            source=source or root / "empty",
            upper=root / "upper",
            work=root / "work",
        )

    async def discard(self, subagent_id: str) -> None:
        self.discarded.append(subagent_id)

    async def make_control_dir(self, run_id: str, prompt: str) -> Path:
        path = self.paths.control_dir(run_id)
        path.mkdir(parents=True, exist_ok=True)
        (path / "prompt").write_text(prompt)
        return path

    async def remove_control_dir(self, run_id: str) -> None:
        path = self.paths.control_dir(run_id)
        if path.exists():
            (path / "prompt").unlink(missing_ok=True)
            path.rmdir()

    async def stale_control_dirs(self, active: set[str]) -> list[str]:
        if not self.paths.runtime_dir.exists():
            return []
        names = {entry.name for entry in self.paths.runtime_dir.iterdir() if re.fullmatch("[0-9a-f]{32}", entry.name)}
        return sorted(names - active)

    async def list_changes(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> list[FileChange]:
        return self.changes

    async def unified_patch(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> bytes:
        return b""

    @asynccontextmanager
    async def exclusive(self, subagent_id: str) -> AsyncIterator[None]:
        async with self.locks.setdefault(subagent_id, asyncio.Lock()):
            yield

    async def changes_of_run(self, mount: WorkspaceMount, run_id: str) -> dict[str, str]:
        return {"a": "changed"}

    async def rollback(self, mount: WorkspaceMount, run_id: str) -> list[str]:
        self.rolled_back.append(run_id)
        return []

    async def run_ended(self, mount: WorkspaceMount, *, run_id: str) -> None:
        self.ended.append(mount)

    async def apply(self, mount: WorkspaceMount, request: ApplyRequest, *, author: str) -> ApplyResult:
        self.applied.append(request)
        return ApplyResult(applied=not request.dry_run, files=self.outcomes)

    async def discard_changes(self, mount: WorkspaceMount, paths: tuple[str, ...] = ()) -> list[str]:
        self.dropped.append(paths)
        return list(paths)

    async def recover(self) -> dict[str, Literal["completed", "rolled_back"]]:
        return self.recovered

    async def list_commits(self, mount: WorkspaceMount) -> list[CommitInfo]:
        return []

    async def export_commits(self, mount: WorkspaceMount, form: CommitsForm) -> bytes:
        raise NotFoundError("no commits")
