"""Removes what is older than the retention: subagents, raw logs, directories that belong to nothing.

What is in use stays, and so do changes that nobody has taken or dropped, unless the caller says otherwise.  Runs and
their events stay for as long as their subagent does.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from orchestrator.config.models import Paths
from orchestrator.contract.audit import SERVICE, Audit
from orchestrator.contract.runs import GcItem, GcKind, GcRequest, GcResult, SubagentRecord
from orchestrator.contract.sandbox import Runtime
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import ConflictError, InvalidRequestError, NotFoundError, PodmentorError
from orchestrator.runs.changes import idle
from orchestrator.runs.storage.store import Store, StoredSubagent
from orchestrator.system.times import rfc3339, utc_now

_ID: Final = re.compile(r"[0-9a-f]{32}")


class Retention:
    """Removes subagents: one by one, or all that were not used for ``retention_days``."""

    def __init__(
        self,
        *,
        paths: Paths,
        retention_days: float,
        store: Store,
        workspaces: Workspaces,
        runtime: Runtime,
        audit: Audit,
    ) -> None:
        self._paths = paths
        self._retention_days = retention_days
        self._store = store
        self._workspaces = workspaces
        self._runtime = runtime
        self._audit = audit

    async def delete_subagent(self, subagent_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Remove a subagent with everything that belongs to it.  Raises NotFoundError, ConflictError, StorageError."""
        async with idle(self._store, self._workspaces, subagent_id, user_id) as (found, _):
            await self._remove(found, actor)

    async def _remove(self, found: SubagentRecord, actor: str) -> None:
        """Remove an idle subagent.  Raises StorageError."""
        await self._audit.record(
            "subagent.deleted", actor=actor, user_id=found.user_id, backend=found.backend, subagent_id=found.subagent_id
        )
        await self._workspaces.discard(found.subagent_id)
        for run_id in found.run_ids:
            await self._runtime.delete_tree(self._paths.run_dir(run_id))
        await self._store.delete_subagent(found.subagent_id)

    async def collect(self, request: GcRequest, *, actor: str = SERVICE) -> GcResult:
        """Make room.  One thing that cannot be removed does not keep the others."""
        if not request.dry_run:
            await self._audit.record(
                "gc",
                actor=actor,
                older_than_days=str(request.older_than_days or "configured"),
                unapplied=request.unapplied,
            )
        days = self._retention_days if request.older_than_days is None else request.older_than_days
        cutoff = rfc3339(utc_now() - timedelta(days=days))
        items: list[GcItem] = []
        for found in await self._store.subagents(user_id=None):
            if found.last_used_at < cutoff:
                items += await self._subagent(found, cutoff, request, actor)
        removed = {item.id for item in items if item.reason is None}
        for run_id, subagent_id in await self._store.finished_before(cutoff):
            if subagent_id not in removed:
                items += await self._directory("log", run_id, self._paths.run_dir(run_id), request)
        items += await self._leftovers({item.id for item in items if item.reason is None}, request)
        return GcResult(
            removed=tuple(item for item in items if item.reason is None),
            kept=tuple(item for item in items if item.reason is not None),
            bytes=sum(item.bytes for item in items if item.reason is None),
            dry_run=request.dry_run,
        )

    async def _subagent(self, found: SubagentRecord, cutoff: str, request: GcRequest, actor: str) -> list[GcItem]:
        """The subagent, removed or (with a reason) not; nothing when it was removed or used meanwhile."""
        places = [self._paths.subagent_dir(found.subagent_id), *map(self._paths.run_dir, found.run_ids)]
        size = sum([await asyncio.to_thread(disk_usage, place) for place in places])
        try:
            if found.busy:
                reason: str | None = "one of its runs is not finished"
            else:
                async with idle(self._store, self._workspaces, found.subagent_id, None) as stored:
                    if stored.record.last_used_at >= cutoff:
                        return []
                    reason = None if request.unapplied else await self._unapplied(stored)
                    if reason is None and not request.dry_run:
                        await self._remove(stored.record, actor)
        except NotFoundError:
            return []
        except PodmentorError as error:
            reason = error.message
        return [GcItem(kind="subagent", id=found.subagent_id, bytes=size, reason=reason)]

    async def _unapplied(self, stored: StoredSubagent) -> str | None:
        """Why the changes of an idle subagent speak against removing it."""
        found, source = stored
        mount = self._workspaces.mount_of(subagent_id=found.subagent_id, source=source, mode=found.workspace)
        if mount.upper is None or not await asyncio.to_thread(mount.upper.exists):
            return None
        try:
            changes = [change for change in await self._workspaces.list_changes(mount) if not change.ignored]
            commits = await self._workspaces.list_commits(mount)
        except (ConflictError, InvalidRequestError, NotFoundError):
            return None
        except PodmentorError as error:
            return f"its changes cannot be looked at: {error.message}"
        if changes or commits:
            return f"it has {len(changes)} changed files and {len(commits)} commits that nobody took or dropped"
        return None

    async def _directory(self, kind: GcKind, name: str, path: Path, request: GcRequest) -> list[GcItem]:
        """The directory, removed or (with a reason) not; nothing when there is none."""
        if not await asyncio.to_thread(path.exists):
            return []
        size = await asyncio.to_thread(disk_usage, path)
        reason = None
        if not request.dry_run:
            try:
                await self._runtime.delete_tree(path)
            except PodmentorError as error:
                reason = error.message
        return [GcItem(kind=kind, id=name, bytes=size, reason=reason)]

    async def _leftovers(self, removed: set[str], request: GcRequest) -> list[GcItem]:
        """Directories first, owners second: what is made in between has its owner in the database already."""
        items: list[GcItem] = []
        state = self._paths.state_dir
        names = {place: await asyncio.to_thread(_ids_in, state / place) for place in ("subagents", "runs")}
        subagents = await self._store.subagents(user_id=None)
        owned = {found.subagent_id for found in subagents} | {run for found in subagents for run in found.run_ids}
        for place, found_names in names.items():
            for name in found_names:
                if name not in owned and name not in removed:
                    items += await self._directory("leftover", name, state / place / name, request)
        return items


def disk_usage(path: Path) -> int:
    """Bytes on disk below ``path``, without following links; what cannot be entered counts as nothing."""
    total = 0
    with suppress(OSError):
        total += os.lstat(path).st_blocks * 512
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512  # noqa: PTH118  # may be not UTF-8
    return total


def _ids_in(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if _ID.fullmatch(entry.name))
    except FileNotFoundError:
        return []
