"""Removes what is older than the retention: conversations, raw logs, directories that belong to nothing.

What is in use stays, and so do changes that nobody has taken or dropped, unless the caller says otherwise.  Runs and
their events stay for as long as their conversation does.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from orchestrator.contract.gc import GcItem, GcRequest, GcResult
from orchestrator.contract.runs import SubagentRecord
from orchestrator.errors import ConflictError, InvalidRequestError, NotFoundError, PodmentorError
from orchestrator.runs.deps import Deps

_ID: Final = re.compile(r"[0-9a-f]{32}")


class Collector:
    """One pass.  ``delete``: removes a conversation that is not busy."""

    def __init__(self, deps: Deps, delete: Callable[[str], Awaitable[None]]) -> None:
        self._deps = deps
        self._delete = delete
        self._removed: list[GcItem] = []
        self._kept: list[GcItem] = []

    async def collect(self, request: GcRequest) -> GcResult:
        """Do it.  One thing that cannot be removed does not keep the others."""
        days = request.older_than_days
        days = self._deps.config.storage.retention_days if days is None else days
        cutoff = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        for found in await self._deps.store.subagents(user_id=None):
            if found.last_used_at < cutoff:
                await self._conversation(found, request)
        gone = {item.id for item in self._removed}
        for run_id, subagent_id in await self._deps.store.finished_before(cutoff):
            if subagent_id not in gone:
                await self._directory("log", run_id, self._deps.paths.run_dir(run_id), request)
        await self._leftovers(request)
        return GcResult(
            removed=tuple(self._removed),
            kept=tuple(self._kept),
            bytes=sum(item.bytes for item in self._removed),
            dry_run=request.dry_run,
        )

    async def _conversation(self, found: SubagentRecord, request: GcRequest) -> None:
        paths = self._deps.paths
        places = [paths.subagent_dir(found.subagent_id), *map(paths.run_dir, found.run_ids)]
        size = sum([await asyncio.to_thread(disk_usage, place) for place in places])
        reason = "one of its runs is not finished" if found.busy else None
        if reason is None and not request.unapplied:
            reason = await self._unapplied(found)
        if reason is None and not request.dry_run:
            try:
                await self._delete(found.subagent_id)
            except NotFoundError:
                return
            except PodmentorError as error:
                reason = error.message
        item = GcItem(kind="conversation", id=found.subagent_id, bytes=size, reason=reason)
        (self._removed if reason is None else self._kept).append(item)

    async def _unapplied(self, found: SubagentRecord) -> str | None:
        """Why its changes speak against removing it."""
        source = await self._deps.store.source_of(found.subagent_id)
        workspaces = self._deps.workspaces
        mount = workspaces.mount_of(subagent_id=found.subagent_id, source=source, mode=found.workspace)
        if mount.upper is None or not await asyncio.to_thread(mount.upper.exists):
            return None
        try:
            changes = [change for change in await workspaces.list_changes(mount) if not change.ignored]
            commits = await workspaces.list_commits(mount)
        except (ConflictError, InvalidRequestError, NotFoundError):
            return None
        except PodmentorError as error:
            return f"its changes cannot be looked at: {error.message}"
        if changes or commits:
            return f"it has {len(changes)} changed files and {len(commits)} commits that nobody took or dropped"
        return None

    async def _directory(self, kind: str, name: str, path: Path, request: GcRequest) -> None:
        if not await asyncio.to_thread(path.exists):
            return
        size = await asyncio.to_thread(disk_usage, path)
        reason = None
        if not request.dry_run:
            try:
                await self._deps.runtime.delete_tree(path)
            except PodmentorError as error:
                reason = error.message
        item = GcItem(kind="log" if kind == "log" else "leftover", id=name, bytes=size, reason=reason)
        (self._removed if reason is None else self._kept).append(item)

    async def _leftovers(self, request: GcRequest) -> None:
        """Directories first, owners second: what is made in between has its owner in the database already."""
        state = self._deps.paths.state_dir
        names = {place: await asyncio.to_thread(_ids_in, state / place) for place in ("subagents", "runs")}
        subagents = await self._deps.store.subagents(user_id=None)
        owned = {found.subagent_id for found in subagents} | {run for found in subagents for run in found.run_ids}
        removed = {item.id for item in self._removed}
        for place, found_names in names.items():
            for name in found_names:
                if name not in owned and name not in removed:
                    await self._directory("leftover", name, state / place / name, request)


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
