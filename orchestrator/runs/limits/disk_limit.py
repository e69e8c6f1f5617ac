"""A run's disk limit: checked before anything is started, kept while it runs, over a restart of the service too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from orchestrator.config.models import Paths
from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.contract.sandbox import StartedSandbox, WorkspaceMount
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import DiskExceededError, PodmentorError
from orchestrator.runs.limits.disk_meter import DiskMeter, DiskPlaces, Inside
from orchestrator.runs.limits.messages import WARN_AT, measures, size_words
from orchestrator.runs.storage.database import to_json
from orchestrator.runs.storage.store import Store, StoredRun

INTERVAL: Final = 0.5
"""Seconds between two looks at the file system's free space."""
FINAL_SECONDS: Final = 5.0
"""What the last walk may take."""
T = TypeVar("T")


class DiskLimit:
    """The disk limit of one run.

    ``store`` keeps what a repo that is worked on directly had before the run; ``workspaces``, ``homes`` and ``paths``
    say where the files of a run are that an earlier service began; ``walkers``: threads in which files are counted.
    """

    def __init__(
        self,
        run: StoredRun,
        *,
        store: Store,
        workspaces: Workspaces,
        homes: SubscriptionHomes,
        paths: Paths,
        walkers: Executor,
    ) -> None:
        self._run = run
        self._store = store
        self._workspaces = workspaces
        self._homes = homes
        self._paths = paths
        self._walkers = walkers
        self._limit = run.record.limits.disk_max_bytes
        self._meter: DiskMeter | None = None

    def usage(self) -> dict[str, int]:
        """``peak_disk_bytes``; nothing before the first measure."""
        if self._meter is None or not self._meter.walks:
            return {}
        return {"peak_disk_bytes": self._meter.peak_bytes}

    async def check(self, mount: WorkspaceMount, home: Path) -> None:
        """Raises DiskExceededError when the subagent has more than the limit already."""
        self._meter = DiskMeter(DiskPlaces.of(mount, home), limit_bytes=self._limit)
        used = await self._in_thread(DiskMeter.first)
        if mount.mode == "direct":
            usage = to_json({"disk_baseline_bytes": self._meter.baseline})
            await self._store.update_run(self._run.record.run_id, usage=usage)
        if used > self._limit:
            raise too_full(self._run, used)

    async def adopt(self, account: HomeKey | None) -> None:
        """Go on for a run that an earlier service began."""
        record = self._run.record
        mount = self._workspaces.mount_of(
            subagent_id=record.subagent_id, source=self._run.source_path, mode=record.workspace
        )
        home = self._paths.subagent_dir(record.subagent_id) / "home"
        if account is not None:
            try:
                home = await self._homes.allocate(account)
            except PodmentorError:
                return  # the account is gone, and its HOME with it
        baseline = record.usage.get("disk_baseline_bytes")
        self._meter = DiskMeter(DiskPlaces.of(mount, home), limit_bytes=self._limit, baseline=baseline)

    async def watch(
        self,
        sandbox: StartedSandbox,
        pids: Callable[[], list[int]],
        *,
        on_warning: Callable[[int], None],
        on_excess: Callable[[int], None],
    ) -> None:
        """Measure every ``INTERVAL`` seconds, until there is more than the limit (``on_excess``, in bytes) or this is
        cancelled.  ``on_warning`` is called once, when most of it is used."""
        inside = Inside(sandbox.init_pid, pids)
        mark = int(self._limit * WARN_AT)
        while self._meter is not None:
            used = await self._in_thread(partial(DiskMeter.tick, mark=mark, inside=inside))
            if used is not None and used > mark:
                on_warning(used)
                mark = self._limit
            if used is not None and used > self._limit:
                on_excess(used)
                return
            await asyncio.sleep(INTERVAL)

    async def finish(self) -> None:
        """The container has ended: measure what it has left, for the record."""
        if self._meter is not None:
            try:
                async with asyncio.timeout(FINAL_SECONDS):
                    await self._in_thread(DiskMeter.final)
            except TimeoutError:
                self._meter.stop()

    def stop(self) -> None:
        """Break off what is under way."""
        if self._meter is not None:
            self._meter.stop()

    async def _in_thread(self, work: Callable[[DiskMeter], T]) -> T:
        assert self._meter is not None
        return await asyncio.get_running_loop().run_in_executor(self._walkers, work, self._meter)


def too_full(run: StoredRun, used: int) -> DiskExceededError:
    """The error of a subagent that is over its limit before its run has begun."""
    record = run.record
    limit = record.limits.disk_max_bytes
    return DiskExceededError(
        f"This subagent has {size_words(used, limit)} in its workspace and home already, over the limit of "
        f"{size_words(limit)}; nothing was started. Take or drop its changes (podmentor changes apply or discard "
        f"{record.subagent_id[:8]}), start a new subagent, remove this one (podmentor subagents delete), or have "
        "limits.disk_max_bytes raised.",
        **measures("disk_max_bytes", limit, used),
    )
