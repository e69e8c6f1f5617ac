"""One run from admitted to finished: launch, watch the limits, end the sandbox, write the last event.

A cancelled ``drive`` (the service is stopping) detaches from the sandbox and leaves it running, unless the run has to
end anyway: then it is killed, and the next service does the rest.  However else it ends, it has removed the container,
the grants and the control directory before the run counts as finished.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.adapter import StreamParser
from orchestrator.contract.runs import RunState
from orchestrator.contract.sandbox import FoundSandbox, Runtime, SandboxExit, StartedSandbox
from orchestrator.errors import PodmentorError, SandboxError, SandboxGoneError, StorageError
from orchestrator.events import Completed, Error, ErrorReason, Status, TerminalEvent
from orchestrator.runs.launch.grants import RunGrants
from orchestrator.runs.launch.launch import Launcher
from orchestrator.runs.limits.disk_limit import DiskLimit
from orchestrator.runs.limits.memory_watchdog import ProcessTable
from orchestrator.runs.limits.monitor import RunMonitor
from orchestrator.runs.observe.telemetry import Telemetry
from orchestrator.runs.state import advance
from orchestrator.runs.storage.database import to_json
from orchestrator.runs.storage.store import Store, StoredRun, set_session
from orchestrator.runs.stream.decoder import LogDecoder
from orchestrator.runs.stream.journal import Entry, Journal
from orchestrator.runs.stream.log_tail import LogWatcher
from orchestrator.runs.stream.pump import Pump
from orchestrator.runs.teardown.outcome import closing_columns, failure
from orchestrator.runs.teardown.teardown import TEARDOWN_SECONDS, Teardown
from orchestrator.system.tasks import TaskOwner
from orchestrator.system.times import now

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 900.0
"""What the pump has to read the rest of a log."""
INTERNAL: Final = Error(reason="sandbox_failed", message="An internal error ended the run; the service's log has it.")


class RunDriver:
    """Drives one run."""

    def __init__(
        self,
        run: StoredRun,
        account: HomeKey | None,
        *,
        parser: StreamParser,
        log_path: Path,
        grants: RunGrants,
        disk: DiskLimit,
        launcher: Launcher,
        teardown: Teardown,
        runtime: Runtime,
        processes: ProcessTable,
        journal: Journal,
        logs: LogWatcher,
        store: Store,
        telemetry: Telemetry,
    ) -> None:
        """``account``: the subscription that the run may use (or uses, when it is taken over)."""
        self._run = run
        self._account = account
        self._id = run.record.run_id
        self._log_path = log_path
        self._launcher = launcher
        self._teardown = teardown
        self._runtime = runtime
        self._journal = journal
        self._store = store
        self._telemetry = telemetry
        self._tasks = TaskOwner(f"run {self._id[:8]}")
        self._grants = grants
        self._decoder = LogDecoder(parser)
        self._monitor = RunMonitor(run.record, self._decoder, disk=disk, processes=processes, warn=self._warn)
        self._pump = Pump(
            run_id=self._id,
            decoder=self._decoder,
            journal=journal,
            logs=logs,
            announced=run.record.state == "running",
            output_max_bytes=run.record.limits.output_max_bytes,
            on_progress=self._monitor.progressed,
        )
        self._container_id = run.container_id
        self._exit: SandboxExit | None = None
        self._granting: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End the run as cancelled; it may have been asked before."""
        self.stop("cancelled", "The run was cancelled.")

    def stop(self, reason: ErrorReason, message: str, **details: object) -> None:
        """End the run for this reason, unless it has to end for another one already."""
        self._monitor.decide(reason, message, **details)

    async def egress_changed(self) -> None:
        """Further hosts were allowed in the database.  Raises SandboxError."""
        await self._grants.renew_proxy()

    async def drive(self, adopt: FoundSandbox | Literal["gone"] | None) -> None:
        """Do all of it.  ``adopt``: the container that an earlier service left behind, or that it is gone."""
        try:
            failure = await self._live(adopt)
            await self._finish(failure)
        except asyncio.CancelledError:
            if self._monitor.stop.is_set() and self._container_id is not None:
                await self._teardown.kill(self._container_id)  # nobody might come to do it in time
            raise
        finally:
            await self._monitor.aclose()
            await self._tasks.aclose()

    async def _live(self, adopt: FoundSandbox | Literal["gone"] | None) -> Error | None:
        """Up to the end of the sandbox; the error, when it failed on our side."""
        try:
            sandbox = await (self._adopt(adopt) if adopt is not None else self._launch())
            if sandbox is not None:
                await self._supervise(sandbox)
        except (PodmentorError, OSError) as error:
            log.warning("run %s: %s", self._id, error)
            return failure(error)
        except Exception:
            log.exception("run %s: a bug ended it", self._id)
            return INTERNAL
        return None

    async def _launch(self) -> StartedSandbox | None:
        """Start the sandbox, unless the run is stopped first."""
        at = now()
        announced = self._run.record.started_at is not None  # an earlier service died while it was starting this run
        entries = [] if announced else [Entry(at, "orchestrator", Status(phase="starting"))]
        admitted = {"state": advance(self._run.record.state, "admitted"), "started_at": at}
        await self._journal.append(self._id, entries, admitted)
        self._run = replace(self._run, record=replace(self._run.record, state="starting", started_at=at))
        self._monitor.begin(self._run.record, self._pump)
        if self._monitor.stop.is_set():  # cancelled while it was between the queue and here
            return None
        launch = self._launcher.launch(
            self._run, self._account, grants=self._grants, check_disk=self._monitor.check_disk, on_sandbox=self._carry
        )
        task = self._tasks.spawn(launch, name="launch", awaited=True)
        await self._first(task)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, PodmentorError, TimeoutError):
                await asyncio.wait_for(task, TEARDOWN_SECONDS)
            return None
        sandbox = task.result()
        self._container_id = sandbox.container_id
        return sandbox

    def _carry(self, run: StoredRun) -> None:
        self._run = run

    async def _adopt(self, found: FoundSandbox | Literal["gone"]) -> StartedSandbox | None:
        """Take up a sandbox that runs or has ended; its grants are made again in case the relay is new."""
        await self._monitor.adopt(self._account, warned=await self._journal.warned(self._id))
        self._monitor.begin(self._run.record, self._pump)
        if self._run.cancel_requested:
            self.cancel()
        elif (decided := self._run.record.error) is not None:
            self.stop(decided["reason"], decided["message"], **decided["details"])
        self._exit = SandboxExit(exit_code=None)
        if found != "gone":
            self._container_id = found.container_id
            with suppress(SandboxGoneError):
                state = await self._runtime.attach(found.container_id)
                if isinstance(state, StartedSandbox):
                    # Beside the rest: a relay that hangs must not keep the run from being ended.
                    again = self._launcher.grant_again(self._run, self._account, self._grants)
                    self._granting = self._tasks.spawn(again, name="grants")
                    return state
                self._exit = state
        if await asyncio.to_thread(self._log_path.exists):  # else the journal has all there is: somebody removed it
            await self._drain(self._tasks.spawn(self._pump.run(self._log_path), name="pump", awaited=True))
        return None

    async def _stop_granting(self) -> None:
        if self._granting is not None:
            self._granting.cancel()
            await asyncio.wait({self._granting}, timeout=TEARDOWN_SECONDS)

    async def _supervise(self, sandbox: StartedSandbox) -> None:
        """Until the sandbox has ended and its log is in the journal."""
        pump = self._tasks.spawn(self._pump.run(self._log_path), name="pump", awaited=True)
        self._monitor.watch(sandbox, self._log_path, by_cgroup=self._runtime.memory_by_cgroup)
        ended = self._tasks.spawn(self._runtime.wait(sandbox), name="wait", awaited=True)
        await self._first(ended, pump)
        if not ended.done():
            self._tasks.spawn(self._note_verdict(), name="verdict")
            await self._teardown.end_sandbox(sandbox.container_id, ended, polite=self._monitor.polite)
        self._exit = ended.result() if ended.done() and not ended.cancelled() else SandboxExit(exit_code=None)
        await self._monitor.sandbox_ended()
        await self._drain(pump)

    async def _note_verdict(self) -> None:
        """Keep why the run must end, beside its end: should we be killed in between, the next service knows it."""
        if (verdict := self._monitor.verdict) is not None:
            with suppress(StorageError):
                await self._store.update_run(self._id, error=to_json(verdict.data()))

    async def _first(self, *tasks: asyncio.Task[Any]) -> None:
        """Until one of ``tasks`` is done (a pump that ends before its sandbox has crashed) or the run must stop."""
        stop = self._tasks.spawn(self._monitor.stop.wait(), name="stop")
        await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _drain(self, pump: asyncio.Task[None]) -> None:
        """Let the pump read the log to its end."""
        self._pump.finish()
        await asyncio.wait({pump}, timeout=DRAIN_SECONDS)
        while not pump.done() and self._journal.stalled:  # a full disk: its events must not be given up
            await asyncio.wait({pump}, timeout=DRAIN_SECONDS)
        if not pump.done():
            raise SandboxError(f"the log of the run could not be read within {DRAIN_SECONDS:g} s")
        pump.result()

    def _warn(self, status: Status) -> None:
        self._tasks.spawn(self._pump.append([Entry(now(), "orchestrator", status)]), name=status.phase)

    async def _finish(self, failure: Error | None) -> None:
        """Remove what the run had, then write its last event."""
        said = self._decoder.terminal
        exit_code = None if self._exit is None else self._exit.exit_code
        try:
            entries = self._pump.closing(exit_code)
            last = entries.pop()
        except Exception:
            log.exception("run %s: a bug in its parser", self._id)
            entries, last = [], Entry(now(), "orchestrator", said or INTERNAL)
        if not isinstance(said, Completed) and (verdict := failure or self._verdict(said)) is not None:
            last = Entry(now(), "orchestrator", self._with_agents_word(verdict, last.event))
        if self._account is not None and isinstance(last.event, Error):
            last = last._replace(event=await self._teardown.advised(last.event, self._id, self._account))
        await self._stop_granting()
        with self._telemetry.step(self._id, "teardown"):
            await self._teardown.tear_down(
                self._run, container_id=self._container_id, revoke_grants=self._grants.revoke
            )
        assert isinstance(last.event, Completed | Error)
        await self._telemetry.run_ends(self._run.record, last.event, self._exit)
        state: RunState = "running" if self._pump.announced else "starting"
        columns = closing_columns(last.event, state=state, exit_code=exit_code, measured=self._monitor.usage())
        await self._pump.append([*entries, last], columns, also=self._keep_session)

    def _keep_session(self, connection: sqlite3.Connection) -> None:
        if self._pump.session_id is not None and self._pump.conversed:
            set_session(connection, self._run.record.subagent_id, self._pump.session_id)

    def _verdict(self, said: TerminalEvent | None) -> Error | None:
        """Why the run ended, when that is ours to say and not the CLI's."""
        if self._monitor.verdict is not None or self._exit is None:
            return self._monitor.verdict
        if (killed := self._monitor.out_of_memory(self._exit)) is not None:
            return killed
        if self._exit.exit_code is None and said is None:
            return Error(
                reason="lost",
                message="The sandbox was lost (a restart of the machine, or somebody removed it or killed its conmon); "
                "what the agent printed until then is kept, and the subagent can be continued.",
            )
        return None

    @staticmethod
    def _with_agents_word(verdict: Error, said: object) -> Error:
        """The orchestrator's error, with what the CLI itself had to say about its end."""
        if not isinstance(said, Error) or said.reason == "lost":
            return verdict
        return replace(verdict, details={**verdict.details, "agent_error": said.message})
