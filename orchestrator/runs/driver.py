"""One run from admitted to finished: launch, watch the limits, end the sandbox, write the last event.

A cancelled ``drive`` (the service is stopping) lets go of the sandbox and leaves it running, unless the run has to end
anyway: then it is killed, and the next service does the rest.  Every other way out of it has removed the container, the
gateway socket and the control directory before the run counts as finished.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.runs import RunState
from orchestrator.contract.sandbox import FoundSandbox, SandboxExit, StartedSandbox
from orchestrator.errors import AuthRequiredError, PodmentorError, SandboxError, SandboxGoneError, StorageError
from orchestrator.events import Completed, Error, Status, TerminalEvent
from orchestrator.runs.clock import now
from orchestrator.runs.deps import Deps
from orchestrator.runs.launch import launch as launching
from orchestrator.runs.launch.egress_proxy import EgressDoor
from orchestrator.runs.launch.gateway_route import route_of
from orchestrator.runs.limits.disk_limit import DiskLimit
from orchestrator.runs.limits.free_space import Space
from orchestrator.runs.limits.monitor import RunMonitor
from orchestrator.runs.observe.telemetry import note_end
from orchestrator.runs.state import advance
from orchestrator.runs.storage.store import StoredRun, set_session
from orchestrator.runs.stream.decoder import LogDecoder
from orchestrator.runs.stream.journal import Entry, to_json
from orchestrator.runs.stream.log_tail import LogTail
from orchestrator.runs.stream.pump import Pump
from orchestrator.runs.teardown.advice import advised
from orchestrator.runs.teardown.outcome import closing_columns, failure
from orchestrator.runs.teardown.teardown import TEARDOWN_SECONDS, end_sandbox, kill, tear_down
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

DRAIN_SECONDS = 900.0
"""What the pump has to read the rest of a log."""

INTERNAL = Error(reason="sandbox_failed", message="An internal error ended the run; the service's log has it.")


class RunDriver:
    """Drives one run."""

    def __init__(self, run: StoredRun, deps: Deps, account: HomeKey | None = None) -> None:
        """``account``: the subscription that the run may use (or uses, when it is taken over)."""
        self._run = run
        self._account = account
        self._deps = deps
        self._id = run.record.run_id
        self._tasks = TaskOwner(f"run {self._id[:8]}")
        self.door = EgressDoor(self._id, deps)
        self._decoder = LogDecoder(deps.adapters[run.record.backend].parser_for(run.resumed))
        self._monitor = RunMonitor(
            run.record,
            self._decoder,
            disk=DiskLimit(
                run,
                store=deps.store,
                workspaces=deps.workspaces,
                homes=deps.homes,
                paths=deps.paths,
                walkers=deps.processes.walkers,
            ),
            space=Space(deps.paths.state_dir, deps.config.storage.keep_free_bytes),
            processes=deps.processes,
            warn=self._tell,
        )
        self._pump = Pump(
            run_id=self._id,
            decoder=self._decoder,
            journal=deps.journal,
            announced=run.record.state == "running",
            output_max_bytes=run.record.limits.output_max_bytes,
            on_progress=self._monitor.progressed,
        )
        self._container_id = run.container_id
        self._exit: SandboxExit | None = None
        self._granting: asyncio.Task[None] | None = None
        self.untidy = False
        """Whether something of the run is still there although it has ended."""

    def cancel(self) -> None:
        """End the run as cancelled; it may have been asked before."""
        self._monitor.decide("cancelled", "The run was cancelled.")

    async def drive(self, adopt: FoundSandbox | Literal["gone"] | None) -> None:
        """Do all of it.  ``adopt``: the container that an earlier service left behind, or that it is gone."""
        try:
            failure = await self._live(adopt)
            await self._finish(failure)
        except asyncio.CancelledError:
            if self._monitor.stop.is_set() and self._container_id is not None:
                await kill(self._deps.runtime, self._container_id)  # nobody might come to do it in time
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
        told = self._run.record.started_at is not None  # an earlier service died while it was starting this run
        entries = [] if told else [Entry(at, "orchestrator", Status(phase="starting"))]
        admitted = {"state": advance(self._run.record.state, "admitted"), "started_at": at}
        await self._deps.journal.append(self._id, entries, admitted)
        self._run = replace(self._run, record=replace(self._run.record, state="starting", started_at=at))
        self._monitor.begin(self._run.record, self._pump)
        if self._monitor.stop.is_set():  # cancelled while it was between the line and here
            return None
        launch = launching.launch(self._run, self._deps, self._account, self.door, self._monitor.check_disk)
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

    async def _adopt(self, found: FoundSandbox | Literal["gone"]) -> StartedSandbox | None:
        """Take up a sandbox that runs or has ended; its gateway is opened again in case the relay is new."""
        await self._monitor.adopt(self._account, warned=await self._deps.journal.warned(self._id))
        self._monitor.begin(self._run.record, self._pump)
        if self._run.cancel_requested:
            self.cancel()
        elif (decided := self._run.record.error) is not None:
            self._monitor.decide(decided["reason"], decided["message"], **decided["details"])
        self._exit = SandboxExit(exit_code=None)
        if found != "gone":
            self._container_id = found.container_id
            with suppress(SandboxGoneError):
                state = await self._deps.runtime.attach(found.container_id)
                if isinstance(state, StartedSandbox):
                    # Beside the rest: a relay that hangs must not keep the run from being ended.
                    self._granting = self._tasks.spawn(self._open_again(), name="ways out")
                    return state
                self._exit = state
        log_path = self._deps.paths.log_path(self._id)
        if not await asyncio.to_thread(log_path.exists):
            return None  # somebody removed it: what the journal has is all there is
        tail = self._deps.watcher.tail(log_path, offset=0)
        await self._drain(tail, self._tasks.spawn(self._pump.run(tail), name="pump", awaited=True))
        return None

    async def _open_again(self) -> None:
        if self._run.token_sha256 is not None:
            try:
                await self._grant_again(self._run.token_sha256)
            except PodmentorError as error:
                log.warning("run %s is taken over without a new gateway grant: %s", self._id, error.message)
        await self.door.reopen()

    async def _stop_granting(self) -> None:
        if self._granting is not None:
            self._granting.cancel()
            await asyncio.wait({self._granting}, timeout=TEARDOWN_SECONDS)

    async def _grant_again(self, token_sha256: str) -> None:
        record, deps = self._run.record, self._deps
        api_key: str | None = None
        if self._account is None:
            credential = await launching.credential_of(self._run, deps, link=record.credential_link)
            if (api_key := credential.api_key) is None:
                raise AuthRequiredError("it has lost its account")
        route = route_of(
            deps.adapters[record.backend],
            subscription=self._account is not None,
            tier=record.tier,
            base_url=deps.config.external_agent.backends[record.backend].base_url,
        )
        if route is not None:
            await launching.grant(self._run, deps, route, api_key, token_sha256)

    async def _supervise(self, sandbox: StartedSandbox) -> None:
        """Until the sandbox has ended and its log is in the journal."""
        tail = self._deps.watcher.tail(self._deps.paths.log_path(self._id), offset=0)
        pump = self._tasks.spawn(self._pump.run(tail), name="pump", awaited=True)
        self._monitor.watch(sandbox, tail.path, by_cgroup=self._deps.runtime.memory_by_cgroup)
        ended = self._tasks.spawn(self._deps.runtime.wait(sandbox), name="wait", awaited=True)
        await self._first(ended, pump)
        if not ended.done():
            self._tasks.spawn(self._note_verdict(), name="verdict")
            await end_sandbox(self._deps.runtime, sandbox.container_id, ended, polite=self._monitor.polite)
        self._exit = ended.result() if ended.done() and not ended.cancelled() else SandboxExit(exit_code=None)
        await self._monitor.sandbox_ended()
        await self._drain(tail, pump)

    async def _note_verdict(self) -> None:
        """Keep why the run must end, beside its end: should we be killed in between, the next service knows it."""
        if (verdict := self._monitor.verdict) is not None:
            with suppress(StorageError):
                await self._deps.store.update_run(self._id, error=to_json(verdict.data()))

    async def _first(self, *tasks: asyncio.Task[Any]) -> None:
        """Until one of ``tasks`` is done (a pump that ends before its sandbox has crashed) or the run must stop."""
        stop = self._tasks.spawn(self._monitor.stop.wait(), name="stop")
        await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _drain(self, tail: LogTail, pump: asyncio.Task[None]) -> None:
        """Let the pump read the log to its end."""
        tail.finish()
        try:
            await asyncio.wait({pump}, timeout=DRAIN_SECONDS)
            while not pump.done() and self._deps.journal.stalled:  # a full disk: its events must not be given up
                await asyncio.wait({pump}, timeout=DRAIN_SECONDS)
            if not pump.done():
                raise SandboxError(f"the log of the run could not be read within {DRAIN_SECONDS:g} s")
            pump.result()
        finally:
            self._deps.watcher.release(tail)

    def _tell(self, status: Status) -> None:
        self._tasks.spawn(self._pump.append([Entry(now(), "orchestrator", status)]), name=status.phase)

    async def _finish(self, failure: Error | None) -> None:
        """Remove what the run had, then write its last event."""
        said = self._decoder.terminal
        try:
            entries = self._pump.closing(None if self._exit is None else self._exit.exit_code)
            last = entries.pop()
        except Exception:
            log.exception("run %s: a bug in its parser", self._id)
            entries, last = [], Entry(now(), "orchestrator", said or INTERNAL)
        if not isinstance(said, Completed) and (verdict := failure or self._verdict(said)) is not None:
            last = Entry(now(), "orchestrator", self._with_agents_word(verdict, last.event))
        if self._account is not None and isinstance(last.event, Error):
            last = last._replace(event=await advised(last.event, self._account, self._id, self._deps.homes))
        await self._stop_granting()
        with self._deps.trails.step(self._id, "teardown"):
            self.untidy = not await tear_down(
                self._run, self._deps, container_id=self._container_id, close_door=self.door.close
            )
        assert isinstance(last.event, Completed | Error)
        await note_end(self._id, last.event, self._exit, self._deps)
        exit_code = None if self._exit is None else self._exit.exit_code
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
