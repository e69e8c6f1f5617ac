"""What the agents of subagents have changed: looked at, taken into the repo, dropped, taken back.

Whatever changes something is in the audit log before it happens; an apply also says there what it did.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from orchestrator.contract.audit import SERVICE, Audit
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
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import ConflictError, NotFoundError
from orchestrator.runs.storage.store import Store, StoredSubagent

_LOGGED_PATHS: Final = 1000
"""So many paths of one action are in the audit log."""


class Changes:
    """See ``orchestrator.contract.changes.ChangeService`` for what each method promises."""

    def __init__(self, *, store: Store, workspaces: Workspaces, audit: Audit) -> None:
        self._store = store
        self._workspaces = workspaces
        self._audit = audit

    async def changes(
        self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING
    ) -> list[FileChange]:
        """What the subagent has changed."""
        mount = await self._mount(subagent_id, user_id)
        return await self._workspaces.list_changes(mount, selection)

    async def patch(self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The same as a patch."""
        mount = await self._mount(subagent_id, user_id)
        return await self._workspaces.unified_patch(mount, selection)

    async def commits(self, subagent_id: str, *, user_id: str | None) -> list[CommitInfo]:
        """The agent's own commits."""
        mount = await self._mount(subagent_id, user_id)
        return await self._workspaces.list_commits(mount)

    async def commits_file(self, subagent_id: str, *, user_id: str | None, form: CommitsForm) -> bytes:
        """The same as a file."""
        mount = await self._mount(subagent_id, user_id)
        return await self._workspaces.export_commits(mount, form)

    async def apply(
        self, subagent_id: str, request: ApplyRequest, *, user_id: str | None, actor: str = SERVICE
    ) -> ApplyResult:
        """Bring changes into the repo."""
        async with idle(self._store, self._workspaces, subagent_id, user_id) as stored:
            found, mount = stored.record, self._mount_of(stored)
            if not request.dry_run:
                await self._audit.record(
                    "changes.apply",
                    actor=actor,
                    user_id=found.user_id,
                    subagent_id=subagent_id,
                    repo=str(mount.target or mount.source),
                    on_conflict=request.on_conflict,
                    paths=_paths(request.selection.paths),
                )
            result = await self._workspaces.apply(mount, request, author=found.backend)
            if result.applied:
                await self._audit.note(
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
        async with idle(self._store, self._workspaces, subagent_id, user_id) as stored:
            found, mount = stored.record, self._mount_of(stored)
            await self._audit.record(
                "changes.discard", actor=actor, user_id=found.user_id, subagent_id=subagent_id, paths=_paths(paths)
            )
            return await self._workspaces.discard_changes(mount, paths)

    async def changes_of_run(self, run_id: str, *, user_id: str | None) -> dict[str, str]:
        """What one run changed."""
        run = (await self._store.run(run_id, user_id=user_id)).record
        mount = await self._mount(run.subagent_id, user_id)
        return await self._workspaces.changes_of_run(mount, run_id)

    async def rollback(self, subagent_id: str, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Take the workspace back."""
        async with idle(self._store, self._workspaces, subagent_id, user_id) as stored:
            found, mount = stored.record, self._mount_of(stored)
            if run_id not in found.run_ids:
                raise NotFoundError(f"subagent {subagent_id} has no run {run_id}")
            await self._audit.record(
                "changes.rollback", actor=actor, user_id=found.user_id, run_id=run_id, subagent_id=subagent_id
            )
            await self._workspaces.rollback(mount, run_id)

    async def _mount(self, subagent_id: str, user_id: str | None) -> WorkspaceMount:
        return self._mount_of(await self._store.subagent(subagent_id, user_id=user_id))

    def _mount_of(self, found: StoredSubagent) -> WorkspaceMount:
        record = found.record
        return self._workspaces.mount_of(
            subagent_id=record.subagent_id, source=found.source_path, mode=record.workspace
        )


@asynccontextmanager
async def idle(
    store: Store, workspaces: Workspaces, subagent_id: str, user_id: str | None
) -> AsyncIterator[StoredSubagent]:
    """Inside the block no run of the subagent is under way, and none can begin.

    Raises NotFoundError, ConflictError when one is.
    """
    await store.subagent(subagent_id, user_id=user_id)  # whoever may not see it does not wait for it either
    async with workspaces.exclusive(subagent_id):
        found = await store.subagent(subagent_id, user_id=user_id)
        if found.record.busy:
            raise ConflictError(
                f"subagent {subagent_id} has a run that is not finished; wait for its end, or cancel it"
            )
        yield found


def _paths(paths: Iterable[str]) -> str:
    """As one fact of the audit log: a JSON list."""
    return json.dumps(list(paths)[:_LOGGED_PATHS])
