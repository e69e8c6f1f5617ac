"""Decides when a run must stop: clocks, output, memory, disk, the caller's wish.  The first decision stands."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import SandboxExit, StartedSandbox, WorkspaceMount
from orchestrator.events import Error, ErrorReason, Status
from orchestrator.runs.limits.cgroup import NEAR, CgroupMemory
from orchestrator.runs.limits.disk_limit import DiskLimit
from orchestrator.runs.limits.memory_watchdog import MemoryMeter, ProcessTable, watch_memory
from orchestrator.runs.limits.messages import WARN_AT, exceeded, measures, size_words, warning
from orchestrator.runs.stream.decoder import LogDecoder
from orchestrator.runs.stream.pump import Pump
from orchestrator.system.tasks import TaskOwner
from orchestrator.system.times import seconds_since

log = logging.getLogger(__name__)
LINGER_SECONDS = 5.0
"""What a CLI has to exit after it has printed its result."""
LOG_SECONDS = 0.1
"""Between two looks at the size of the log."""
LOG_FACTOR, LOG_SLACK = 2, 1024**2
"""A log of more than so many times the limit on output, and so many bytes, is an excess of it."""
_Deadline: TypeAlias = Literal["timeout", "warning", "answered", "start_timeout", "idle_timeout"]
_POLITE: frozenset[ErrorReason] = frozenset({"cancelled", "timeout", "idle_timeout"})


class RunMonitor:
    """Keeps the limits of one run.  ``stop``: the sandbox must end; ``verdict``: why (None: it has answered).

    In this order: ``begin`` (for a run that is taken over ``adopt`` first), ``check_disk`` when it is launched,
    ``watch``, ``sandbox_ended``; ``aclose`` at any time.
    ``warn`` is called with each warning: once for each limit, not for those in ``warned``.
    """

    def __init__(
        self,
        record: RunRecord,
        decoder: LogDecoder,
        *,
        disk: DiskLimit,
        processes: ProcessTable,
        warn: Callable[[Status], None],
    ) -> None:
        self._record = record
        self._decoder = decoder
        self._disk = disk
        self._processes = processes
        self._warn = warn
        self._tasks = TaskOwner(f"limits of run {record.run_id[:8]}")
        self._disk_watch: asyncio.Task[None] | None = None
        self.warned: set[str] = set()
        self._meter: MemoryMeter | None = None
        self._kernel: CgroupMemory | None = None
        self._answered_at: float | None = None
        self._has_output = False
        self._by_cgroup = False
        self._wake = asyncio.Event()
        self.stop = asyncio.Event()
        self.verdict: Error | None = None

    @property
    def polite(self) -> bool:
        """Whether the CLI is asked to end before it is killed."""
        return self.verdict is not None and self.verdict.reason in _POLITE

    async def check_disk(self, mount: WorkspaceMount, home: Path) -> None:
        """Raises DiskExceededError when the subagent has more than the limit on disk before anything is started."""
        await self._disk.check(mount, home)

    async def adopt(self, account: HomeKey | None, *, warned: set[str]) -> None:
        """Go on for a run that an earlier service began, and that was given the warnings ``warned``."""
        self.warned |= warned
        await self._disk.adopt(account)

    def begin(self, record: RunRecord, pump: Pump) -> None:
        """Watch the times, which run from ``record.started_at``."""
        self._record = record
        self._tasks.spawn(self._clock(pump), name="clock")

    def watch(self, sandbox: StartedSandbox, log_path: Path, *, by_cgroup: bool) -> None:
        """Watch what the sandbox uses.  ``by_cgroup``: the kernel keeps the memory limit."""
        self._tasks.spawn(self._measure(sandbox, by_cgroup=by_cgroup), name="memory")
        self._disk_watch = self._tasks.spawn(self._watch_disk(sandbox), name="disk")
        self._tasks.spawn(self._watch_log(log_path), name="log size")

    async def sandbox_ended(self) -> None:
        """Measure for the last time what it has left on disk."""
        if self._disk_watch is not None:
            self._disk_watch.cancel()
        await self._disk.finish()

    async def aclose(self) -> None:
        """Stop watching.  Safe to call twice."""
        self._disk.stop()
        await self._tasks.aclose()

    def decide(self, reason: ErrorReason, message: str, **details: object) -> None:
        """Stop the run for this reason, unless it was stopped before."""
        self._decide(Error(reason=reason, message=message, details=details))

    def _decide(self, verdict: Error) -> None:
        if self.verdict is None and not self.stop.is_set():
            self.verdict = verdict
            self.stop.set()

    def _near(self, limit: str, used: float) -> None:
        """Warn that most of this limit is used, unless that was done or is too late."""
        if limit not in self.warned and not self.stop.is_set() and self._answered_at is None:
            self.warned.add(limit)
            self._warn(warning(limit, getattr(self._record.limits, limit), used))

    def progressed(self) -> None:
        """More output was decoded."""
        limit, used = self._record.limits.output_max_bytes, self._decoder.output_bytes
        if used > limit:
            self._decide(exceeded("output_exceeded", limit, used))
        elif used > limit * WARN_AT:
            self._near("output_max_bytes", used)
        if self._decoder.terminal is not None and self._answered_at is None:
            self._answered_at = asyncio.get_running_loop().time()
            self._wake.set()
        elif self._decoder.has_output and not self._has_output:
            self._has_output = True
            self._wake.set()

    async def _clock(self, pump: Pump) -> None:
        """Watch the times until the run stops.  Sleeps until the next thing that can happen; never polls."""
        loop = asyncio.get_running_loop()
        begun = loop.time() - (seconds_since(self._record.started_at) if self._record.started_at else 0.0)
        while not self.stop.is_set():
            at, meaning = self._next(pump, begun)
            if loop.time() >= at:
                if meaning == "warning":
                    self._near("wall_clock_seconds", loop.time() - begun)
                    self.warned.add("wall_clock_seconds")  # also when it was too late to warn
                    continue
                self._expire(meaning, loop.time() - (pump.last_output if meaning == "idle_timeout" else begun))
                return
            self._wake.clear()
            try:
                async with asyncio.timeout_at(at):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next(self, pump: Pump, begun: float) -> tuple[float, _Deadline]:
        """The nearest deadline in loop time, and what it means."""
        limits = self._record.limits
        deadlines: list[tuple[float, _Deadline]] = [(begun + limits.wall_clock_seconds, "timeout")]
        if "wall_clock_seconds" not in self.warned:
            deadlines.append((begun + limits.wall_clock_seconds * WARN_AT, "warning"))
        if self._answered_at is not None:
            deadlines.append((self._answered_at + LINGER_SECONDS, "answered"))
        elif not self._decoder.has_output:
            deadlines.append((begun + limits.start_seconds, "start_timeout"))
        elif limits.idle_seconds is not None:
            deadlines.append((pump.last_output + limits.idle_seconds, "idle_timeout"))
        return min(deadlines, key=lambda deadline: deadline[0])

    def _expire(self, meaning: _Deadline, used: float) -> None:
        limits = self._record.limits
        match meaning:
            case "start_timeout":
                self._decide(exceeded("start_timeout", limits.start_seconds, used))
            case "idle_timeout":
                self._decide(exceeded("idle_timeout", limits.idle_seconds or 0.0, used))
            case "timeout":
                self._decide(exceeded("timeout", limits.wall_clock_seconds, used))
            case _:
                self.stop.set()

    async def _measure(self, sandbox: StartedSandbox, *, by_cgroup: bool) -> None:
        """Measure memory until the sandbox has ended; enforce the limit where the cgroup does not."""
        self._by_cgroup = by_cgroup
        allowed = self._record.limits.memory_max_bytes
        with await MemoryMeter.of(sandbox.init_pid, self._processes) as self._meter:
            kills = self._tasks.spawn(self._kernel_kills(sandbox.init_pid), name="cgroup") if by_cgroup else None
            try:
                await watch_memory(
                    self._meter,
                    limit_bytes=sys.maxsize if by_cgroup else allowed,
                    on_excess=self._memory_excess,
                    warn_bytes=int(allowed * WARN_AT),
                    on_warning=lambda used: self._near("memory_max_bytes", used),
                )
            finally:
                if kills is not None:
                    kills.cancel()

    async def _kernel_kills(self, init_pid: int) -> None:
        """End the run when the kernel has killed any process of it, as the watchdog would: the CLI itself may go on."""
        limit = self._record.limits.memory_max_bytes
        self._kernel = await asyncio.to_thread(CgroupMemory.of, init_pid)
        if self._kernel is None:
            return  # it has ended already
        try:
            await self._kernel.killed(limit)
        except OSError as error:
            log.warning("the cgroup of process %d cannot be watched: %s", init_pid, error)
            return
        self._decide(self._killed_by_kernel())

    async def _memory_excess(self, used: int) -> None:
        limit = self._record.limits.memory_max_bytes
        self._decide(exceeded("memory_exceeded", limit, used, enforcement="watchdog"))

    async def _watch_disk(self, sandbox: StartedSandbox) -> None:
        """Keep the disk limit; to be cancelled when the sandbox has ended."""
        limit = self._record.limits.disk_max_bytes
        await self._disk.watch(
            sandbox,
            lambda: [] if self._meter is None else self._meter.pids(),
            on_warning=lambda used: self._near("disk_max_bytes", used),
            on_excess=lambda used: self._decide(exceeded("disk_exceeded", limit, used)),
        )

    async def _watch_log(self, path: Path) -> None:
        """Stop a flood of output that is written faster than it is read, by the size of the log until the run stops.

        The log has a time stamp for each line, so its size is less exact than the reader, but known at once.
        """
        limit = self._record.limits.output_max_bytes
        while not self.stop.is_set():
            size = await asyncio.get_running_loop().run_in_executor(self._processes.executor, _size, path)
            if size > LOG_FACTOR * limit + LOG_SLACK:
                self._decide(exceeded("output_exceeded", limit, size, measured="size of the log"))
                return
            await asyncio.sleep(LOG_SECONDS)

    def out_of_memory(self, ended: SandboxExit) -> Error | None:
        """The error for a sandbox that the kernel ended for want of memory; None when it did not.

        Where neither Podman nor the cgroup could be asked in time, a SIGKILL that nobody here sent, with memory used up
        to the limit, is the evidence.
        """
        if ended.oom_killed or (
            self._by_cgroup
            and ended.exit_code == 137
            and (self._used() >= NEAR * self._record.limits.memory_max_bytes or (self._kernel and self._kernel.kills))
        ):
            return self._killed_by_kernel()
        return None

    def _killed_by_kernel(self) -> Error:
        limit, used = self._record.limits.memory_max_bytes, self._used()
        if self._kernel is None or self._kernel.near(limit) or not self._kernel.kills:
            return exceeded("memory_exceeded", limit, used, enforcement="cgroup")
        message = (
            f"The kernel ended the agent for want of memory on the machine, or of all that podmentor may use: it had "
            f"used {size_words(used, limit)} of the {size_words(limit)} that are allowed."
        )
        details = {**measures("memory_max_bytes", limit, used), "enforcement": "cgroup"}
        return Error(reason="memory_exceeded", message=message, details=details)

    def _used(self) -> int:
        """The most memory in use at any measure, in bytes: the kernel's own count where there is one.

        The other measure may be higher: it has pages of files that were charged to whoever had read them first.
        """
        if self._kernel is not None and self._kernel.peak_bytes:
            return self._kernel.peak_bytes
        return 0 if self._meter is None else self._meter.peak_bytes

    def usage(self) -> dict[str, Any]:
        """What was measured so far, as ``RunRecord.usage`` has it (see docs/limits.md for the names)."""
        used: dict[str, Any] = {"output_bytes": self._decoder.output_bytes, **self._disk.usage()}
        if self._record.started_at is not None:
            used["duration_seconds"] = round(seconds_since(self._record.started_at), 3)
        if self._meter is not None:
            used |= {
                "peak_memory_bytes": self._used() if self._kernel and self._kernel.kills else self._meter.peak_bytes,
                "peak_pids": self._meter.peak_pids,
                "cpu_seconds": round(self._meter.cpu_seconds, 2),
            }
        return used


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
