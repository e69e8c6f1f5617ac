"""All runs of this service: admits them, drives them, takes over at start what an earlier service left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeAlias, TypeVar

from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.audit import Audit, Fact
from orchestrator.contract.egress import EgressReport
from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import FoundSandbox, Runtime
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import NotFoundError, PodmentorError, QueueFullError, ShuttingDownError, StorageError
from orchestrator.events import Error, ErrorReason, Status
from orchestrator.runs.admission.queue import Claim, ClaimKind, Queue, Waiting
from orchestrator.runs.driver import RunDriver
from orchestrator.runs.launch.launch import has_output
from orchestrator.runs.limits.free_space import Space
from orchestrator.runs.observe.telemetry import Telemetry
from orchestrator.runs.state import advance, outcome_of
from orchestrator.runs.storage.database import to_json
from orchestrator.runs.storage.store import Store, StoredRun
from orchestrator.runs.stream.journal import Entry, Journal
from orchestrator.runs.teardown.outcome import failure
from orchestrator.runs.teardown.teardown import Teardown
from orchestrator.system.tasks import TaskOwner
from orchestrator.system.times import now

log = logging.getLogger(__name__)

T = TypeVar("T")

CANCELLED: Final = Error(reason="cancelled", message="The run was cancelled before it began.")
ENDING_SECONDS: Final = 2.0
"""What a caller waits for the end of a run that had not begun."""
POSITIONS_REPORTED: Final = 16
"""Places at the front of the queue whose changes are events; all have theirs in the run's record."""
NewDriver: TypeAlias = Callable[[StoredRun, HomeKey | None], RunDriver]
"""Makes the driver of a run, and of the subscription that the run may use."""


class Supervisor:
    """Owns the queue and one driver per admitted run."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        adapters: Mapping[str, BaseAdapter],
        store: Store,
        journal: Journal,
        runtime: Runtime,
        workspaces: Workspaces,
        homes: SubscriptionHomes,
        audit: Audit,
        telemetry: Telemetry,
        teardown: Teardown,
        new_driver: NewDriver,
    ) -> None:
        self._limits = config.runs
        self._backends = config.external_agent.backends
        self._paths = paths
        self._adapters = adapters
        self._store = store
        self._journal = journal
        self._runtime = runtime
        self._workspaces = workspaces
        self._homes = homes
        self._audit = audit
        self._telemetry = telemetry
        self._teardown = teardown
        self._new_driver = new_driver
        self._tasks = TaskOwner("supervisor")
        self._queue = Queue(max_concurrent=config.runs.max_concurrent, on_admit=self._admit)
        self._reserved = 0
        """Places in the queue of runs that are being accepted."""
        self._drivers: dict[str, RunDriver] = {}
        self._reported: dict[str, tuple[int, ClaimKind | None]] = {}
        """The place of each waiting run as its last event has it, and what it waits for."""
        self._cancelled: set[str] = set()
        """Runs whose end was asked for in this life of the service; it is in the database as well."""
        self._space = Space(paths.state_dir, config.storage.keep_free_bytes)
        self._watching_space: asyncio.Task[None] | None = None
        self._accepting = False
        self._left_running: frozenset[str] = frozenset()
        self._quiet = asyncio.Event()
        self._quiet.set()

    # --- the start of the service -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Sweep what a crash left, take over what still runs, queue what waited."""
        for subagent_id, how in (await self._workspaces.recover()).items():
            event = "changes.completed" if how == "completed" else "changes.rolled_back"
            await self._audit.note(event, subagent_id=subagent_id, reason="an apply was interrupted")
        found = {sandbox.run_id: sandbox for sandbox in await self._runtime.find()}
        runs = await self._store.unfinished()
        leases = await self._teardown.sweep(found, {run.record.run_id for run in runs})
        for run in reversed(runs):  # those that had been admitted go to the front again, in their order
            run_id = run.record.run_id
            if run.record.backend in self._adapters:
                await self._resume(run, found.get(run_id), leases.get(run_id))
            else:
                error = f"The backend {run.record.backend} is no longer enabled."
                self._end_later(run.record, Error(reason="sandbox_failed", message=error))
                if run_id in found:
                    await self._teardown.remove(found[run_id])
        self._accepting = True
        self._queue.admit()
        self._report_positions()

    async def _resume(self, run: StoredRun, sandbox: FoundSandbox | None, account: HomeKey | None) -> None:
        record = run.record
        entry = Waiting(record.run_id, self._claims(record, account or await self._account(record)))
        if record.state == "queued" and run.cancel_requested:
            self._end_later(record, CANCELLED)
        elif record.state == "queued":
            if record.last_seq == 0:
                await self._append_position(record.run_id, 0, None)
            self._queue.join(entry, first=True)
        elif sandbox is not None and sandbox.state in {"running", "exited"}:
            self._take_over(run, account, sandbox)
        elif record.state == "running":
            self._take_over(run, account, "gone")
        else:  # it was being started
            if sandbox is not None:
                await self._teardown.remove(sandbox)
            if await asyncio.to_thread(has_output, self._paths.log_path(record.run_id)):
                self._take_over(run, account, "gone")  # it did begin, and must not be done twice
                return
            await self._teardown.clear_for_requeue(record)
            decided = CANCELLED if run.cancel_requested else None if record.error is None else Error(**record.error)
            if decided is not None:  # it was being ended when the service died
                self._end_later(record, decided)
                return
            await self._store.update_run(record.run_id, state=advance(record.state, "requeued"))
            self._queue.join(entry, first=True)

    def _take_over(self, run: StoredRun, account: HomeKey | None, sandbox: FoundSandbox | Literal["gone"]) -> None:
        self._queue.adopt(Waiting(run.record.run_id, self._claims(run.record, account)))
        self._quiet.clear()
        driving = self._drive(run.record.run_id, self._driver(run, account), sandbox)
        self._tasks.spawn(driving, name=f"run {run.record.run_id[:8]}")

    # --- from accepted to finished ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place in the queue for the run that is accepted inside the block; nobody else gets it meanwhile.

        Raises ShuttingDownError, QueueFullError, StorageError (no room left on the disk).
        """
        if not self._accepting:
            raise ShuttingDownError("the service is stopping and takes no more runs; try again when it is back")
        if (waiting := len(self._queue.waiting) + self._reserved) >= self._limits.max_queued:
            raise QueueFullError(f"{waiting} runs are waiting already; try again later", retry_after=5)
        self._reserved += 1
        try:
            await self._space.check()
            yield
        finally:
            self._reserved -= 1

    async def unbroken(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """What ``work`` returns; it is done to its end even when its caller is cancelled."""
        return await asyncio.shield(self._tasks.spawn(work, name=name, awaited=True))

    async def enqueue(self, record: RunRecord) -> None:
        """Put a stored run into the queue, inside ``place``; its first event reports its place."""
        entry = Waiting(record.run_id, self._claims(record, await self._account(record)))
        ahead, waits_for = len(self._queue.waiting), self._queue.waits_for(entry)
        self._reported[record.run_id] = (ahead, waits_for)
        try:
            await self._append_position(record.run_id, ahead, waits_for)
        except StorageError as error:  # the run is stored: it must not wait for a restart
            log.warning("run %s: its place could not be noted: %s", record.run_id, error.message)
        if record.run_id in self._cancelled:  # since it was stored
            self._reported.pop(record.run_id, None)
            self._end_later(record, CANCELLED)
            return
        self._queue.join(entry)
        self._queue.admit()
        self._report_positions()

    def _admit(self, entry: Waiting) -> None:
        self._reported.pop(entry.run_id, None)
        self._quiet.clear()
        self._tasks.spawn(self._start(entry), name=f"run {entry.run_id[:8]}")
        self._report_positions()

    async def _start(self, entry: Waiting) -> None:
        record: RunRecord | None = None
        try:
            run = await self._store.run(entry.run_id)  # now its subagent's earlier runs have ended
            record = run.record
            account = await self._account(record)  # it may have been connected, or removed, while the run waited
            if not self._queue.claim(entry.run_id, self._claims(record, account)):
                if entry.run_id in self._cancelled and self._queue.leave(entry.run_id):
                    await self._end(record, CANCELLED)
                self._report_positions()
                self._note_quiet()
                return
            driver = self._driver(run, account)
        except PodmentorError as error:
            self._left(entry.run_id)
            await self._end_unread(entry.run_id, record, failure(error))
            return
        if run.cancel_requested or entry.run_id in self._cancelled:
            driver.cancel()
        await self._drive(entry.run_id, driver, None)

    def _driver(self, run: StoredRun, account: HomeKey | None) -> RunDriver:
        driver = self._drivers[run.record.run_id] = self._new_driver(run, account)
        if self._watching_space is None:
            self._watching_space = self._tasks.spawn(self._space.watch(self._stop_all), name="space")
        return driver

    async def _drive(self, run_id: str, driver: RunDriver, adopt: FoundSandbox | Literal["gone"] | None) -> None:
        try:
            await driver.drive(adopt)
        finally:
            self._drivers.pop(run_id, None)
            if not self._drivers and self._watching_space is not None:
                self._watching_space.cancel()
                self._watching_space = None
            self._cancelled.discard(run_id)
            self._left(run_id)

    def _stop_all(self, reason: ErrorReason, message: str, **details: object) -> None:
        for driver in self._drivers.values():
            driver.stop(reason, message, **details)

    def _left(self, run_id: str) -> None:
        self._queue.done(run_id)
        self._report_positions()
        self._note_quiet()

    def _note_quiet(self) -> None:
        if not self._queue.active:
            self._quiet.set()

    async def cancel(self, record: RunRecord) -> None:
        """End a run that has not finished, wherever it is."""
        run_id = record.run_id
        unstored: StorageError | None = None
        self._cancelled.add(run_id)
        try:
            await self._store.update_run(run_id, cancel_requested=1)
        except StorageError as error:  # it ends all the same, unless the service ends first
            unstored = error
        if self._queue.leave(run_id):
            self._reported.pop(run_id, None)
            ending = self._end_later(record, CANCELLED)
            await asyncio.wait({ending}, timeout=ENDING_SECONDS)  # a full disk may keep it
            self._report_positions()
        elif (driver := self._drivers.get(run_id)) is not None:
            driver.cancel()
        elif unstored is not None:
            raise unstored

    async def egress_changed(self, run_id: str) -> None:
        """Further hosts were allowed in the database.  Raises SandboxError."""
        if (driver := self._drivers.get(run_id)) is not None:
            await driver.egress_changed()

    async def egress_reported(self, report: EgressReport) -> None:
        """The egress proxy reports attempts: denials go into the run's stream, everything into the audit log."""
        self._telemetry.egress_reported(report)
        try:
            record = (await self._store.run(report.run_id)).record
        except NotFoundError:
            return  # deleted meanwhile
        about: dict[str, Fact] = {
            "user_id": record.user_id,
            "run_id": report.run_id,
            "backend": record.backend,
            "host": report.host,
            "port": report.port,
            "count": report.count,
        }
        if report.verdict == "allowed":
            await self._audit.note("egress.allowed", **about, bytes_up=report.bytes_up, bytes_down=report.bytes_down)
            return
        await self._audit.note("egress.denied", **about, reason=report.reason)
        info = {"host": report.host, "port": report.port, "reason": report.reason, "count": report.count}
        denied = Entry(now(), "orchestrator", Status(phase="egress_denied", info=info))
        await self._journal.append(report.run_id, [denied])

    # --- ends of runs that have no driver ---------------------------------------------------------------------------

    def _end_later(self, record: RunRecord, error: Error) -> asyncio.Task[None]:
        """``_end`` where a full disk must not keep the service from starting."""
        return self._tasks.spawn(self._end(record, error), name=f"end {record.run_id[:8]}")

    async def _end_unread(self, run_id: str, record: RunRecord | None, error: Error) -> None:
        """``_end`` of a run whose row could not be read (``record`` None): it is tried once more, for the audit log."""
        if record is None:
            try:
                record = (await self._store.run(run_id)).record
            except PodmentorError as unread:
                log.error("the end of run %s is missing in the audit log: %s", run_id, unread.message)  # noqa: TRY400
                await self._append_end(run_id, error)
                return
        await self._end(record, error)

    async def _end(self, record: RunRecord, error: Error) -> None:
        await self._telemetry.run_ends(record, error, None)
        await self._append_end(record.run_id, error)

    async def _append_end(self, run_id: str, error: Error) -> None:
        self._cancelled.discard(run_id)
        columns = {
            "state": "finished",
            "outcome": outcome_of(error),
            "error": to_json(error.data()),
            "finished_at": now(),
        }
        await self._journal.insist(run_id, [Entry(now(), "orchestrator", error)], columns)

    # --- what others want to know -----------------------------------------------------------------------------------

    async def _account(self, record: RunRecord) -> HomeKey | None:
        """The subscription that the run would use if it began now."""
        backend = self._backends.get(record.backend)
        if backend is None or backend.mode != "byo_subscription":
            return None
        key = HomeKey(record.user_id, record.backend)
        try:
            return key if await self._homes.usable(key) is not None else None
        except PodmentorError as error:  # the run itself will end with it
            log.warning("the account of run %s cannot be used: %s", record.run_id, error.message)
            return None

    def _claims(self, record: RunRecord, account: HomeKey | None) -> tuple[Claim, ...]:
        subagent = Claim("subagent", record.subagent_id)
        if account is None:
            return (subagent,)
        return (subagent, Claim("home", "/".join(account), self._limits.max_concurrent_per_home))

    def _report_positions(self) -> None:
        """Journal the new places of those at the front."""
        for place, entry in enumerate(self._queue.waiting[:POSITIONS_REPORTED]):
            waits_for = self._queue.waits_for(entry)
            if self._reported.get(entry.run_id) != (place, waits_for):
                self._reported[entry.run_id] = (place, waits_for)
                self._tasks.spawn(self._append_position(entry.run_id, place, waits_for), name="position")

    async def _append_position(self, run_id: str, ahead: int, waits_for: ClaimKind | None) -> None:
        info: dict[str, object] = {"position": ahead}
        if waits_for is not None:
            info["waiting_for"] = waits_for
        status = Status(phase="queued", info=info)
        await self._journal.append(run_id, [Entry(now(), "orchestrator", status)], when="queued")

    def position(self, run_id: str) -> int | None:
        """How many runs are ahead of a waiting one."""
        return self._queue.position(run_id)

    async def leftovers(self) -> list[str]:
        """What is there without a run that it belongs to; empty when all is well."""
        return await self._teardown.leftovers({run.record.run_id for run in await self._store.unfinished()})

    def counts(self) -> dict[str, int]:
        """How many wait and run."""
        return {"queued": len(self._queue.waiting), "running": len(self._queue.active)}

    @property
    def left_running(self) -> frozenset[str]:
        """The runs that ``stop`` left to the next service: they still need their way to the provider."""
        return self._left_running

    @property
    def accepting(self) -> bool:
        """Whether new runs are taken."""
        return self._accepting

    async def stop(self, *, drain: bool) -> None:
        """Take no more runs.  ``drain``: wait for those admitted; else detach from them, their containers go on."""
        self._accepting = False
        self._queue.close()
        if drain:
            await self._quiet.wait()  # bounded: every admitted run has a wall clock
        self._left_running = frozenset(self._queue.active)
        await self._tasks.aclose(grace=10.0)
        await self._teardown.aclose()
