"""The half of the service that is about what conversations have left: changes looked at, taken, dropped; room made.

Whatever changes something is in the audit log before it happens; an apply also says there what it did.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from orchestrator.contract.audit import SERVICE
from orchestrator.contract.changes import (
    EVERYTHING,
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
)
from orchestrator.contract.gc import GcRequest, GcResult
from orchestrator.contract.runs import SubagentRecord
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import ConflictError, ForbiddenError, NotFoundError
from orchestrator.runs.deps import Deps
from orchestrator.runs.retention import Collector
from orchestrator.runs.storage.store import StoredRun

_LOGGED_PATHS = 1000
"""So many paths of one action are in the audit log."""


class Reviewing(ABC):
    """See ``orchestrator.contract.runs.RunService`` for what each method promises."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @abstractmethod
    async def _own(self, run_id: str, user_id: str | None) -> StoredRun: ...

    @abstractmethod
    async def get_subagent(self, subagent_id: str, *, user_id: str | None) -> SubagentRecord:
        """One conversation."""

    async def delete_subagent(self, subagent_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Remove a conversation with everything that belongs to it."""
        async with self._idle(subagent_id, user_id) as found:
            await self._deps.audit.record(
                "subagent.deleted", actor=actor, user_id=found.user_id, backend=found.backend, subagent_id=subagent_id
            )
            await self._deps.workspaces.discard(subagent_id)
            for run_id in found.run_ids:
                await self._deps.runtime.delete_tree(self._deps.paths.run_dir(run_id))
            await self._deps.store.delete_subagent(subagent_id)

    async def gc(self, request: GcRequest, *, user_id: str | None, actor: str = SERVICE) -> GcResult:
        """Make room."""
        if user_id is not None:
            raise ForbiddenError("only an admin or the local owner may remove what is old")
        if not request.dry_run:
            await self._deps.audit.record(
                "gc",
                actor=actor,
                older_than_days=str(request.older_than_days or "configured"),
                unapplied=request.unapplied,
            )
        collector = Collector(self._deps, lambda found: self.delete_subagent(found, user_id=None, actor=actor))
        return await collector.collect(request)

    async def changes(
        self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING
    ) -> list[FileChange]:
        """What the conversation has changed."""
        mount = await self._mount(subagent_id, user_id)
        return await self._deps.workspaces.list_changes(mount, selection)

    async def patch(self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The same as a patch."""
        mount = await self._mount(subagent_id, user_id)
        return await self._deps.workspaces.unified_patch(mount, selection)

    async def commits(self, subagent_id: str, *, user_id: str | None) -> list[CommitInfo]:
        """The agent's own commits."""
        mount = await self._mount(subagent_id, user_id)
        return await self._deps.workspaces.list_commits(mount)

    async def commits_file(self, subagent_id: str, *, user_id: str | None, form: CommitsForm) -> bytes:
        """The same as a file."""
        mount = await self._mount(subagent_id, user_id)
        return await self._deps.workspaces.export_commits(mount, form)

    async def apply(
        self, subagent_id: str, request: ApplyRequest, *, user_id: str | None, actor: str = SERVICE
    ) -> ApplyResult:
        """Bring changes into the repo."""
        mount = await self._mount(subagent_id, user_id)
        async with self._idle(subagent_id, user_id) as found:
            if not request.dry_run:
                await self._deps.audit.record(
                    "changes.apply",
                    actor=actor,
                    user_id=found.user_id,
                    subagent_id=subagent_id,
                    repo=str(mount.target or mount.source),
                    on_conflict=request.on_conflict,
                    paths=_paths(request.selection.paths),
                )
            result = await self._deps.workspaces.apply(mount, request, author=found.backend)
            if result.applied:
                await self._deps.audit.note(
                    "changes.applied",
                    actor=actor,
                    user_id=found.user_id,
                    subagent_id=subagent_id,
                    branch=result.branch,
                    commit=result.commit,
                    paths=_paths(one.path for one in result.files if one.outcome in {"applied", "merged"}),
                )
        return result

    async def discard(
        self, subagent_id: str, paths: tuple[str, ...], *, user_id: str | None, actor: str = SERVICE
    ) -> list[str]:
        """Drop changes."""
        mount = await self._mount(subagent_id, user_id)
        async with self._idle(subagent_id, user_id) as found:
            await self._deps.audit.record(
                "changes.discard", actor=actor, user_id=found.user_id, subagent_id=subagent_id, paths=_paths(paths)
            )
            return await self._deps.workspaces.discard_changes(mount, paths)

    async def changes_of_run(self, run_id: str, *, user_id: str | None) -> dict[str, str]:
        """What one run changed."""
        run = await self._own(run_id, user_id)
        mount = await self._mount(run.record.subagent_id, user_id)
        return await self._deps.workspaces.changes_of_run(mount, run_id)

    async def rollback(self, subagent_id: str, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Take the workspace back."""
        mount = await self._mount(subagent_id, user_id)
        async with self._idle(subagent_id, user_id) as found:
            if run_id not in found.run_ids:
                raise NotFoundError(f"subagent {subagent_id} has no run {run_id}")
            await self._deps.audit.record(
                "changes.rollback", actor=actor, user_id=found.user_id, run_id=run_id, subagent_id=subagent_id
            )
            await self._deps.workspaces.rollback(mount, run_id)

    @asynccontextmanager
    async def _idle(self, subagent_id: str, user_id: str | None) -> AsyncIterator[SubagentRecord]:
        """Inside the block no run of the conversation is under way, and none can begin."""
        async with self._deps.workspaces.exclusive(subagent_id):
            found = await self.get_subagent(subagent_id, user_id=user_id)
            if found.busy:
                raise ConflictError(
                    f"subagent {subagent_id} has a run that is not finished; wait for its end, or cancel it"
                )
            yield found

    async def _mount(self, subagent_id: str, user_id: str | None) -> WorkspaceMount:
        found = await self.get_subagent(subagent_id, user_id=user_id)
        source = await self._deps.store.source_of(subagent_id)
        return self._deps.workspaces.mount_of(subagent_id=subagent_id, source=source, mode=found.workspace)


async def take_down(run: StoredRun, deps: Deps) -> None:
    """What the repo has where the agent changed something: the container is gone, and the next run not begun."""
    record = run.record
    if record.started_at is not None:
        mount = deps.workspaces.mount_of(subagent_id=record.subagent_id, source=run.source_path, mode=record.workspace)
        await deps.workspaces.run_ended(mount, run_id=record.run_id)


def _paths(paths: Iterable[str]) -> str:
    """As one fact of the audit log: a JSON list."""
    return json.dumps(list(paths)[:_LOGGED_PATHS])
