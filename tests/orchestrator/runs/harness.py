"""A service of runs over fakes that can be killed and started again on the same state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.bootstrap.runs import RunParts, assemble_runs
from orchestrator.config.models import Config, Paths
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.runs import RunRecord, RunRequest
from orchestrator.credentials.homes import Homes
from orchestrator.events import EventRecord
from orchestrator.runs.backends import BenchLookup
from orchestrator.runs.limits.memory_watchdog import ProcessTable
from orchestrator.runs.storage.database import Database
from orchestrator.runs.stream.log_tail import LogWatcher
from tests.fakes.adapter import EchoAdapter
from tests.fakes.audit import FakeAudit
from tests.fakes.credentials import FakeCredentials
from tests.fakes.metrics import FakeMetrics
from tests.fakes.relay import FakeRelay
from tests.fakes.runtime import FakeContainer, FakeRuntime
from tests.fakes.traces import FakeTraces
from tests.fakes.workspaces import FakeWorkspaces

USER = "alice"


class World:
    """What outlives the service: disk, containers, relay."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.paths = Paths(state_dir=root / "state", runtime_dir=root / "run")
        self.paths.state_dir.mkdir(exist_ok=True)
        self.paths.runtime_dir.mkdir(exist_ok=True)
        self.config = Config.model_validate({"external_agent": {"backends": {"echo": {}}}, **config})
        self.runtime = FakeRuntime()
        self.relay = FakeRelay()
        self.credentials = FakeCredentials()
        self.chain: Credentialing | None = None
        """Instead of ``credentials``."""
        self.adapter = EchoAdapter()
        self.audit = FakeAudit()
        self.metrics = FakeMetrics()
        self.traces = FakeTraces()
        self.observed: BenchLookup = lambda _backend, _version: None

    @asynccontextmanager
    async def service(self, *, drain: bool = False) -> AsyncIterator[Service]:
        """One life of the service; it ends as at SIGTERM."""
        async with AsyncExitStack() as stack:
            database = Database(self.paths.database)
            stack.push_async_callback(database.aclose)
            await database.open()
            logs = await stack.enter_async_context(LogWatcher())
            processes = ProcessTable()
            stack.push_async_callback(processes.aclose)
            adapters: dict[str, BaseAdapter] = {"echo": self.adapter}
            homes, workspaces = Homes(self.paths.plugin_storage), FakeWorkspaces(self.paths)
            parts = assemble_runs(
                config=self.config,
                paths=self.paths,
                instance="i",
                adapters=adapters,
                database=database,
                logs=logs,
                processes=processes,
                runtime=self.runtime,
                relay=self.relay,
                workspaces=workspaces,
                credentials=self.chain or self.credentials,
                homes=homes,
                audit=self.audit,
                metrics=self.metrics,
                traces=self.traces,
                observed=self.observed,
            )
            service = Service(self, parts, adapters=adapters, homes=homes, workspaces=workspaces, processes=processes)
            await parts.supervisor.start()
            try:
                yield service
            finally:
                await asyncio.wait_for(parts.supervisor.stop(drain=drain), 30)
                parts.journal.close()


class Service:
    """One life of the service."""

    def __init__(
        self,
        world: World,
        parts: RunParts,
        *,
        adapters: dict[str, BaseAdapter],
        homes: Homes,
        workspaces: FakeWorkspaces,
        processes: ProcessTable,
    ) -> None:
        self.world = world
        self.adapters = adapters
        self.homes = homes
        self.workspaces = workspaces
        self.processes = processes
        self.runs = parts.runs
        self.changes = parts.changes
        self.backends = parts.backends
        self.supervisor = parts.supervisor
        self.census = parts.gauges
        self.store = parts.store
        self.journal = parts.journal
        self.telemetry = parts.telemetry

    async def submit(self, query: str = "do it", **over: Any) -> RunRecord:
        values: dict[str, Any] = {"backend": "echo", "query": query, "user_id": USER}
        return await self.runs.submit(RunRequest(**{**values, **over}))

    async def container(self) -> FakeContainer:
        """The next container that was started."""
        return await asyncio.wait_for(self.world.runtime.started.get(), 10)

    async def finished(self, run_id: str) -> RunRecord:
        record = await self.runs.wait(run_id, user_id=USER, timeout=20)
        assert record.state == "finished"
        return record

    async def events(self, run_id: str) -> list[EventRecord]:
        return [record async for record in self.runs.events(run_id, user_id=USER, follow=False)]

    async def until(self, run_id: str, kind: str, **data: Any) -> EventRecord:
        """Follow until an event of this kind with these data."""
        async with asyncio.timeout(20):
            async for record in self.runs.events(run_id, user_id=USER):
                if record.kind == kind and all(record.data.get(k) == v for k, v in data.items()):
                    return record
        raise AssertionError(f"no event {kind} {data}")


def shape(events: list[EventRecord]) -> list[str]:
    """Kinds, with the phase of a status."""
    return [f"status:{e.data['phase']}" if e.kind == "status" else e.kind for e in events]


def answer(container: FakeContainer, text: str = "hi", *, session: str = "s1") -> None:
    """A whole good run of the pretended CLI."""
    container.say(session=session)
    container.say(text=text)
    container.say(done=text)
    container.exit(0)
