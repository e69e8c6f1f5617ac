"""All runs of this service: admits them, drives them, takes over at start what an earlier service left."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import FoundSandbox
from orchestrator.errors import PodmentorError, QueueFullError, ShuttingDownError, StorageError
from orchestrator.events import Error, Status
from orchestrator.runs.admission.queue import Claim, ClaimKind, Line, Waiting
from orchestrator.runs.clock import now
from orchestrator.runs.deps import Deps
from orchestrator.runs.driver import RunDriver
from orchestrator.runs.launch.egress_proxy import note_report
from orchestrator.runs.launch.launch import has_output
from orchestrator.runs.limits.free_space import Space
from orchestrator.runs.observe.telemetry import note_end
from orchestrator.runs.state import advance, outcome_of
from orchestrator.runs.storage.rows import StoredRun
from orchestrator.runs.stream.journal import Entry, to_json
from orchestrator.runs.teardown.outcome import failure
from orchestrator.runs.teardown.teardown import Sweeper
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

CANCELLED = Error(reason="cancelled", message="The run was cancelled before it began.")
ENDING_SECONDS = 2.0
"""What a caller waits for the end of a run that had not begun."""
POSITIONS_TOLD = 16
"""Places at the front of the line whose changes are events; all see theirs in the run's record."""


class Supervisor:
    """Owns the line and one driver per admitted run."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._tasks = TaskOwner("supervisor")
        self._line = Line(max_concurrent=deps.config.runs.max_concurrent, on_admit=self._admit)
        self._drivers: dict[str, RunDriver] = {}
        self._told: dict[str, tuple[int, ClaimKind | None]] = {}
        self._cancelled: set[str] = set()
        """Runs whose end was asked for in this life of the service; it is in the database as well."""
        self._sweeper = Sweeper(deps)
        self._space = Space(deps.paths.state_dir, deps.config.storage.keep_free_bytes)
        self._accepting = False
        self._let_go: frozenset[str] = frozenset()
        self._quiet = asyncio.Event()
        self._quiet.set()
        deps.relay.listen(lambda report: note_report(report, deps))

    async def start(self) -> None:
        """Sweep what a crash left, take over what still runs, queue what waited."""
        deps = self._deps
        for subagent_id, how in (await deps.workspaces.recover()).items():
            event = "changes.completed" if how == "completed" else "changes.rolled_back"
            await deps.audit.note(event, subagent_id=subagent_id, reason="an apply was interrupted")
        boxes = {box.run_id: box for box in await deps.runtime.find()}
        runs = await deps.store.unfinished()
        unfinished = {run.record.run_id for run in runs}
        leases = await self._sweeper.sweep(boxes, unfinished)
        for run in reversed(runs):  # those that had been admitted go to the front again, in their order
            await self._resume(run, boxes.get(run.record.run_id), leases.get(run.record.run_id))
        self._accepting = True
        self._line.admit()
        self._tell_positions()

    async def _resume(self, run: StoredRun, box: FoundSandbox | None, account: HomeKey | None) -> None:
        record = run.record
        entry = Waiting(record.run_id, self._claims(record, account or await self._account(record)))
        if record.backend not in self._deps.adapters:
            self._end_later(
                record.run_id,
                Error(reason="sandbox_failed", message=f"The backend {record.backend} is no longer enabled."),
            )
            if box is not None:
                await self._sweeper.remove(box)
        elif record.state == "queued" and run.cancel_requested:
            self._end_later(record.run_id, CANCELLED)
        elif record.state == "queued":
            if record.last_seq == 0:
                await self._append_status(record.run_id, 0, None)
            self._line.join(entry, first=True)
        elif box is not None and box.state in {"running", "exited"}:
            self._take_over(run, account, box)
        elif record.state == "running":
            self._take_over(run, account, "gone")
        else:  # it was being started
            if box is not None:
                await self._sweeper.remove(box)
            if await asyncio.to_thread(has_output, self._deps.paths.log_path(record.run_id)):
                self._take_over(run, account, "gone")  # it did begin, and must not be done twice
                return
            await self._sweeper.requeued(run)
            await self._deps.homes.leave(record.run_id)
            decided = CANCELLED if run.cancel_requested else None if record.error is None else Error(**record.error)
            if decided is not None:  # it was being ended when the service died
                self._end_later(record.run_id, decided)
                return
            await self._deps.store.update_run(record.run_id, state=advance(record.state, "requeued"))
            self._line.join(entry, first=True)

    def _take_over(self, run: StoredRun, account: HomeKey | None, box: FoundSandbox | Literal["gone"]) -> None:
        run_id = run.record.run_id
        self._line.adopt(Waiting(run_id, self._claims(run.record, account)))
        self._quiet.clear()
        driver = RunDriver(run, self._deps, account)
        self._drivers[run_id] = driver
        self._tasks.spawn(self._drive(run_id, driver, box), name=f"run {run_id[:8]}")

    async def _account(self, record: RunRecord) -> HomeKey | None:
        """The subscription that the run would use if it began now."""
        backend = self._deps.config.external_agent.backends.get(record.backend)
        if backend is None or backend.mode != "byo_subscription":
            return None
        key = HomeKey(record.user_id, record.backend)
        try:
            return key if await self._deps.homes.usable(key) is not None else None
        except PodmentorError as error:  # the run itself will end with it
            log.warning("the account of run %s cannot be used: %s", record.run_id, error.message)
            return None

    def _claims(self, record: RunRecord, account: HomeKey | None) -> tuple[Claim, ...]:
        subagent = Claim("subagent", record.subagent_id)
        if account is None:
            return (subagent,)
        capacity = self._deps.config.runs.max_concurrent_per_home
        return (subagent, Claim("home", "/".join(account), capacity))

    async def check_accepting(self) -> None:
        """Raises ShuttingDownError, QueueFullError, StorageError (no room left on the disk)."""
        if not self._accepting:
            raise ShuttingDownError("the service is stopping and takes no more runs; try again when it is back")
        if len(self._line.waiting) >= self._deps.config.runs.max_queued:
            raise QueueFullError(f"{len(self._line.waiting)} runs are waiting already; try again later", retry_after=5)
        await self._space.check()

    async def enqueue(self, run: StoredRun) -> None:
        """Put a stored run into the line; its first event tells its place."""
        record = run.record
        entry = Waiting(record.run_id, self._claims(record, await self._account(record)))
        ahead, waits_for = len(self._line.waiting), self._line.waits_for(entry)
        self._told[record.run_id] = (ahead, waits_for)
        try:
            await self._append_status(record.run_id, ahead, waits_for)
        except StorageError as error:  # the run is stored: it must not wait for a restart
            log.warning("run %s: its place could not be noted: %s", record.run_id, error.message)
        self._line.join(entry)
        self._line.admit()
        self._tell_positions()

    def _admit(self, entry: Waiting) -> None:
        self._told.pop(entry.run_id, None)
        self._quiet.clear()
        self._tasks.spawn(self._start(entry), name=f"run {entry.run_id[:8]}")
        self._tell_positions()

    async def _start(self, entry: Waiting) -> None:
        try:
            record = (await self._deps.store.run(entry.run_id)).record
            account = await self._account(record)  # it may have been connected, or removed, while the run waited
            if not self._line.claim(entry.run_id, self._claims(record, account)):
                if entry.run_id in self._cancelled and self._line.leave(entry.run_id):
                    await self._end_waiting(entry.run_id, CANCELLED)
                self._waits_again()
                return
            run = await self._deps.store.run(entry.run_id)
            driver = RunDriver(run, self._deps, account)
            self._drivers[entry.run_id] = driver
            if run.cancel_requested or entry.run_id in self._cancelled:
                driver.cancel()
        except PodmentorError as error:
            self._left(entry.run_id)
            await self._end_waiting(entry.run_id, failure(error))
            return
        await self._drive(entry.run_id, driver, None)

    def _waits_again(self) -> None:
        self._tell_positions()
        if not self._line.active:
            self._quiet.set()

    async def _drive(self, run_id: str, driver: RunDriver, adopt: FoundSandbox | Literal["gone"] | None) -> None:
        try:
            await driver.drive(adopt)
        finally:
            self._drivers.pop(run_id, None)
            self._cancelled.discard(run_id)
            if driver.untidy:
                self._sweeper.note(run_id)
            self._left(run_id)

    def _left(self, run_id: str) -> None:
        self._line.done(run_id)
        self._tell_positions()
        if not self._line.active:
            self._quiet.set()

    async def cancel(self, run_id: str) -> None:
        """End a run that has not finished, wherever it is."""
        unstored: StorageError | None = None
        self._cancelled.add(run_id)
        try:
            await self._deps.store.update_run(run_id, cancel_requested=1)
        except StorageError as error:  # it ends all the same, unless the service ends first
            unstored = error
        if self._line.leave(run_id):
            self._told.pop(run_id, None)
            ending = self._tasks.spawn(self._end_waiting(run_id, CANCELLED), name=f"end {run_id[:8]}")
            await asyncio.wait({ending}, timeout=ENDING_SECONDS)  # a full disk may keep it
            self._tell_positions()
        elif (driver := self._drivers.get(run_id)) is not None:
            driver.cancel()
        elif unstored is not None:
            raise unstored

    async def egress_changed(self, run_id: str) -> None:
        """Further hosts were allowed in the database.  Raises SandboxError."""
        if (driver := self._drivers.get(run_id)) is not None:
            await driver.door.renew()

    def _end_later(self, run_id: str, error: Error) -> None:
        """``_end_waiting`` where a full disk must not keep the service from starting."""
        self._tasks.spawn(self._end_waiting(run_id, error), name=f"end {run_id[:8]}")

    async def _end_waiting(self, run_id: str, error: Error) -> None:
        self._cancelled.discard(run_id)
        await note_end(run_id, error, None, self._deps)
        await self._deps.journal.insist(
            run_id,
            [Entry(now(), "orchestrator", error)],
            {
                "state": "finished",
                "outcome": outcome_of(error),
                "error": to_json(error.data()),
                "finished_at": now(),
            },
        )

    def _tell_positions(self) -> None:
        """Journal the new places of those at the front."""
        for place, entry in enumerate(self._line.waiting[:POSITIONS_TOLD]):
            waits_for = self._line.waits_for(entry)
            if self._told.get(entry.run_id) != (place, waits_for):
                self._told[entry.run_id] = (place, waits_for)
                self._tasks.spawn(self._append_status(entry.run_id, place, waits_for), name="position")

    async def _append_status(self, run_id: str, ahead: int, waits_for: ClaimKind | None) -> None:
        info: dict[str, object] = {"position": ahead}
        if waits_for is not None:
            info["waiting_for"] = waits_for
        status = Status(phase="queued", info=info)
        await self._deps.journal.append(run_id, [Entry(now(), "orchestrator", status)], when="queued")

    def position(self, run_id: str) -> int | None:
        """How many runs are ahead of a waiting one."""
        return self._line.position(run_id)

    async def leftovers(self) -> list[str]:
        """What is there without a run that it belongs to: containers, control directories, gateways.  Empty when all
        is well; what is found is removed at the next start."""
        deps = self._deps
        runs = {run.record.run_id for run in await deps.store.unfinished()}
        boxes = [box.run_id for box in await deps.runtime.find() if box.run_id not in runs]
        return [
            *(f"container of {run_id}" for run_id in boxes),
            *(f"control directory of {run_id}" for run_id in await deps.workspaces.stale_control_dirs(runs)),
            *(f"gateway of {run_id}" for run_id in sorted(await deps.relay.granted() - runs)),
        ]

    def counts(self) -> dict[str, int]:
        """How many wait and run."""
        return {"queued": len(self._line.waiting), "running": len(self._line.active)}

    @property
    def let_go(self) -> frozenset[str]:
        """The runs that ``stop`` left running for the next service: they still need their way to the provider."""
        return self._let_go

    @property
    def accepting(self) -> bool:
        """Whether new runs are taken."""
        return self._accepting

    async def stop(self, *, drain: bool) -> None:
        """Take no more runs.  ``drain``: wait for those admitted; else let go of them, their containers go on."""
        self._accepting = False
        self._line.close()
        if drain:
            await self._quiet.wait()  # bounded: every admitted run has a wall clock
        self._let_go = frozenset(self._line.active)
        await self._tasks.aclose(grace=10.0)
        await self._sweeper.aclose()
