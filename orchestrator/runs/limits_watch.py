"""Decides when a run must stop: clocks, output, memory, the caller's wish.  The first decision stands."""

from __future__ import annotations

import asyncio
import logging
import sys

from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import SandboxExit, StartedSandbox
from orchestrator.events import Error, ErrorReason
from orchestrator.runs.cgroup import NEAR, CgroupMemory
from orchestrator.runs.clock import seconds_since
from orchestrator.runs.decode import LogDecoder
from orchestrator.runs.memory import MemoryMeter, ProcessTable, watch_memory
from orchestrator.runs.pump import Pump
from orchestrator.tasks import TaskOwner

log = logging.getLogger(__name__)
LINGER_SECONDS = 5.0
"""What a CLI has to exit after it has printed its result."""
_POLITE: frozenset[ErrorReason] = frozenset({"cancelled", "timeout", "idle_timeout"})


class LimitsWatch:
    """The limits of one run.  ``stop``: the sandbox must end; ``verdict``: why (None: it has answered)."""

    def __init__(self, record: RunRecord, decoder: LogDecoder) -> None:
        self._record = record
        self._decoder = decoder
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

    def started(self, record: RunRecord) -> None:
        """The run has been admitted: its clock runs from ``record.started_at``."""
        self._record = record

    def decide(self, reason: ErrorReason, message: str, **details: object) -> None:
        """Stop the run for this reason, unless it was stopped before."""
        if self.verdict is None and not self.stop.is_set():
            self.verdict = Error(reason=reason, message=message, details=details)
            self.stop.set()

    def progressed(self) -> None:
        """More output was decoded."""
        limit = self._record.limits.output_max_bytes
        if self._decoder.output_bytes > limit:
            self.decide(
                "output_exceeded",
                f"The agent printed more than the {limit} bytes that are allowed; what it printed until then is kept.",
                limit_bytes=limit,
                used_bytes=self._decoder.output_bytes,
            )
        if self._decoder.terminal is not None and self._answered_at is None:
            self._answered_at = asyncio.get_running_loop().time()
            self._wake.set()
        elif self._decoder.has_output and not self._has_output:
            self._has_output = True
            self._wake.set()

    async def clock(self, pump: Pump) -> None:
        """Watch the times until the run stops.  Sleeps until the next thing that can happen; never polls."""
        loop = asyncio.get_running_loop()
        begun = loop.time() - (seconds_since(self._record.started_at) if self._record.started_at else 0.0)
        while not self.stop.is_set():
            at, reason = self._next(pump, begun)
            if loop.time() >= at:
                self._expire(reason)
                return
            self._wake.clear()
            try:
                async with asyncio.timeout_at(at):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next(self, pump: Pump, begun: float) -> tuple[float, ErrorReason | None]:
        """The nearest deadline in loop time, and what it means."""
        limits = self._record.limits
        deadlines: list[tuple[float, ErrorReason | None]] = [(begun + limits.wall_clock_seconds, "timeout")]
        if self._answered_at is not None:
            deadlines.append((self._answered_at + LINGER_SECONDS, None))
        elif not self._decoder.has_output:
            deadlines.append((begun + limits.start_seconds, "start_timeout"))
        elif limits.idle_seconds is not None:
            deadlines.append((pump.last_output + limits.idle_seconds, "idle_timeout"))
        return min(deadlines, key=lambda deadline: deadline[0])

    def _expire(self, reason: ErrorReason | None) -> None:
        limits = self._record.limits
        match reason:
            case None:
                self.stop.set()
            case "start_timeout":
                self.decide(
                    reason,
                    f"The agent printed nothing within {limits.start_seconds:g} s of its start; the run's log and "
                    "`podmentor doctor` may tell why.",
                    limit_seconds=limits.start_seconds,
                )
            case "idle_timeout":
                self.decide(reason, f"The agent printed nothing for {limits.idle_seconds:g} s.",
                            limit_seconds=limits.idle_seconds)  # fmt: skip
            case _:
                self.decide(reason, f"The run took longer than its {limits.wall_clock_seconds:g} s; continue it with "
                            "its subagent id, or allow more with `limits.wall_clock_seconds`.",
                            limit_seconds=limits.wall_clock_seconds)  # fmt: skip

    async def measure(self, sandbox: StartedSandbox, table: ProcessTable, *, by_cgroup: bool) -> None:
        """Measure memory until the sandbox has ended; enforce the limit where the cgroup does not."""
        self._by_cgroup = by_cgroup
        limit = sys.maxsize if by_cgroup else self._record.limits.memory_max_bytes
        kernel = TaskOwner("cgroup")
        with await MemoryMeter.of(sandbox.init_pid, table) as self._meter:
            if by_cgroup:
                kernel.spawn(self._kernel_kills(sandbox.init_pid), name="kills")
            try:
                await watch_memory(self._meter, limit_bytes=limit, on_excess=self._memory_excess)
            finally:
                await kernel.aclose()

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
        killed = self._killed_by_kernel()
        self.decide(killed.reason, killed.message, **killed.details)

    async def _memory_excess(self, used: int) -> None:
        limit = self._record.limits.memory_max_bytes
        self.decide(
            "memory_exceeded",
            f"The agent's processes used {used} bytes of memory, over the limit of {limit}.",
            limit_bytes=limit,
            used_bytes=used,
            enforcement="watchdog",
        )

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
            message = f"The agent's processes used more than the {limit} bytes of memory that are allowed."
        else:
            message = (
                f"The kernel ended the agent for want of memory on the machine, or of all that podmentor may use: it "
                f"had used {used} of the {limit} bytes that are allowed."
            )
        details = {"limit_bytes": limit, "used_bytes": used, "enforcement": "cgroup"}
        return Error(reason="memory_exceeded", message=message, details=details)

    def _used(self) -> int:
        """The most memory that was seen in use, in bytes, by either measure."""
        return max(
            0 if self._meter is None else self._meter.peak_bytes, 0 if self._kernel is None else self._kernel.peak_bytes
        )

    def usage(self) -> dict[str, int]:
        """What was measured."""
        return {} if self._meter is None else {"peak_memory_bytes": self._meter.peak_bytes}
