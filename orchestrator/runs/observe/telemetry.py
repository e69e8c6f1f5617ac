"""What runs do, for those who operate the service: numbers, traces, the audit log.

Numbers and traces come from what the journal has just taken in, so that a run which is taken over after a restart, and
whose log is read again from its start, counts once.
The runs there are, and what has gone through the relay, are counted only when somebody asks for the numbers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

from orchestrator.contract import metrics as m
from orchestrator.contract.audit import Audit, Fact
from orchestrator.contract.egress import EgressReport
from orchestrator.contract.gateway import Relay, Traffic
from orchestrator.contract.metrics import Metrics
from orchestrator.contract.runs import RunRecord, RunState
from orchestrator.contract.sandbox import SandboxExit
from orchestrator.contract.traces import RunTrace, Step, Traces
from orchestrator.errors import SandboxError
from orchestrator.events import Error, TerminalEvent
from orchestrator.runs.limits.messages import REASONS
from orchestrator.runs.state import outcome_of
from orchestrator.runs.storage.database import Database
from orchestrator.runs.stream.journal import Appended
from orchestrator.system.times import parse, seconds_since

log = logging.getLogger(__name__)

_TOKEN_KINDS: Final = ("input", "output", "cache_read", "cache_write", "reasoning")
StepName: TypeAlias = Literal["credentials", "workspace", "start", "teardown"]
RELAY_SECONDS: Final = 1.5
"""What the relay has to answer: less than a scrape waits for all of it."""
_STATES = tuple(state for state in get_args(RunState) if state != "finished")


class Telemetry:
    """Counts and times what runs do, and notes their ends in the audit log.  No number is worth a run."""

    def __init__(self, metrics: Metrics, traces: Traces, audit: Audit) -> None:
        self._metrics = metrics
        self._traces = traces
        self._audit = audit
        self._steps: dict[str, list[Step]] = {}
        """Of the runs under way, until their traces are sent; empty when nobody wants traces."""

    @contextmanager
    def step(self, run_id: str, name: StepName) -> Iterator[None]:
        """What happens inside the block is this step of the run's trace; it has failed when the block raises."""
        if not self._traces.enabled:
            yield
            return
        began, failed = time.time_ns(), True
        try:
            yield
            failed = False
        finally:
            step = Step(name=name, began=began, ended=time.time_ns(), failed=failed)
            self._steps.setdefault(run_id, []).append(step)

    def steps_taken(self, run_id: str) -> tuple[Step, ...]:
        """The steps of a run, which are forgotten here."""
        return tuple(self._steps.pop(run_id, ()))

    def appended(self, what: Appended) -> None:
        """Something was stored in the journal.  Never raises."""
        try:
            self._count(what)
        except Exception:
            log.exception("run %s could not be counted", what.run_id)

    def egress_reported(self, report: EgressReport) -> None:
        """The egress proxy has reported attempts of a run."""
        self._metrics.add(m.EGRESS_ATTEMPTS, report.count, verdict=report.verdict)
        for direction, size in (("up", report.bytes_up), ("down", report.bytes_down)):
            self._metrics.add(m.EGRESS_BYTES, size, direction=direction)

    async def run_ends(self, record: RunRecord, last: TerminalEvent, ended: SandboxExit | None) -> None:
        """The run's last event is about to be written: into the audit log with how it ended.

        After a crash at this very moment the next service ends the run again, and there are two lines.
        """
        who: dict[str, Fact] = {"user_id": record.user_id, "run_id": record.run_id, "backend": record.backend}
        reason = last.reason if isinstance(last, Error) else None
        if isinstance(last, Error) and reason in REASONS:
            await self._audit.note(
                "limit.hit", **who, limit=reason, allowed=_detail(last, "limit_"), used=_detail(last, "used_")
            )
        await self._audit.note(
            "run.ended",
            **who,
            subagent_id=record.subagent_id,
            tier=record.tier,
            credential_source=record.credential_source,
            outcome=outcome_of(last),
            reason=reason,
            exit_code=None if ended is None else ended.exit_code,
            duration_ms=None if record.started_at is None else round(1000 * seconds_since(record.started_at)),
        )

    def _count(self, what: Appended) -> None:
        add, observe = self._metrics.add, self._metrics.observe
        observe(m.APPEND_SECONDS, what.seconds)
        for (kind, source), number in Counter((one.event.kind, one.source) for one in what.entries).items():
            add(m.EVENTS, number, kind=kind, source=source)
        state = what.update.get("state")
        if state == "starting" and what.started_at is None:  # else an earlier service had begun to start it
            observe(m.QUEUE_SECONDS, seconds_since(what.created_at), backend=what.backend)
        elif state == "running" and what.started_at is not None:
            observe(m.START_SECONDS, seconds_since(what.started_at), backend=what.backend)
        elif state == "finished":
            self._ended(what)

    def _ended(self, what: Appended) -> None:
        add = self._metrics.add
        last = what.entries[-1].event
        reason = last.reason if isinstance(last, Error) else ""
        outcome = str(what.update["outcome"])
        usage: dict[str, Any] = json.loads(str(what.update.get("usage", "{}")))
        tokens = usage.get("tokens") or {}
        add(m.RUNS_ENDED, backend=what.backend, outcome=outcome, reason=reason)
        if what.started_at is not None:
            self._metrics.observe(m.RUN_SECONDS, seconds_since(what.started_at), backend=what.backend, outcome=outcome)
        add(m.OUTPUT_BYTES, usage.get("output_bytes", 0), backend=what.backend)
        for kind in _TOKEN_KINDS:
            if tokens.get(kind):
                add(m.TOKENS, tokens[kind], backend=what.backend, kind=kind)
        if reason in REASONS:
            add(m.LIMITS, limit=reason)
        if self._traces.enabled:
            counts = {f"podmentor.tokens.{kind}": int(tokens[kind]) for kind in _TOKEN_KINDS if kind in tokens}
            self._traces.run_ended(_trace(what, outcome, reason, self.steps_taken(what.run_id), counts))


def _trace(what: Appended, outcome: str, reason: str, taken: tuple[Step, ...], counts: Mapping[str, int]) -> RunTrace:
    began, ended = _nanoseconds(what.created_at), time.time_ns()
    admitted = ended if what.started_at is None else _nanoseconds(what.started_at)
    steps = [Step(name="queue", began=began, ended=admitted), *taken]
    started = [step.ended for step in taken if step.name == "start" and not step.failed]
    taken_over = not started and what.state == "running"
    if started or taken_over:
        until = next((step.began for step in taken if step.name == "teardown"), ended)
        steps.append(Step(name="running", began=started[-1] if started else admitted, ended=until))
    attributes: dict[str, str | int | bool] = {
        "podmentor.run_id": what.run_id,
        "podmentor.backend": what.backend,
        "podmentor.tier": what.tier,
        "podmentor.outcome": outcome,
        **counts,
    }
    if reason:
        attributes["podmentor.reason"] = reason
    if taken_over:
        attributes["podmentor.taken_over"] = True
    return RunTrace(
        run_id=what.run_id,
        traceparent=what.traceparent,
        began=began,
        ended=ended,
        failed=outcome == "failed",
        attributes=attributes,
        steps=tuple(sorted(steps, key=lambda step: step.began)),
    )


def _nanoseconds(ts: str) -> int:
    return round(parse(ts).timestamp() * 1_000_000) * 1000


def _detail(error: Error, prefix: str) -> int | None:
    """The first number of this family in the error's details: whole, since that is all a line takes."""
    found = (value for name, value in error.details.items() if name.startswith(prefix))
    value = next(found, None)
    return round(value) if isinstance(value, int | float) else None


class Gauges:
    """``look`` puts the numbers of this moment.  ``accepting``: whether runs are taken now."""

    def __init__(self, *, database: Database, relay: Relay, metrics: Metrics, accepting: Callable[[], bool]) -> None:
        self._database = database
        self._accepting = accepting
        self._relay = relay
        self._metrics = metrics

    async def look(self) -> None:
        """Raises StorageError."""
        self._metrics.put(m.READY, int(self._accepting()))
        counts = await self._database.call(_count)
        for state in _STATES:
            self._metrics.put(m.RUNS, counts.get(state, 0), state=state)
        await self._ask_relay()

    async def _ask_relay(self) -> None:
        try:
            async with asyncio.timeout(RELAY_SECONDS):
                totals = await self._relay.totals()
        except (SandboxError, TimeoutError):
            totals = None
        self._metrics.put(m.RELAY_UP, int(totals is not None))
        gateway, proxy = (None, None) if totals is None else (totals.gateway, totals.egress)
        self._metrics.put(m.RELAY_REQUESTS, None if gateway is None else gateway.requests)
        for via, counts in (("gateway", gateway), ("proxy", proxy)):
            self._put_traffic(via, counts)

    def _put_traffic(self, via: str, counts: Traffic | None) -> None:
        put = self._metrics.put
        put(m.RELAY_OPEN, None if counts is None else counts.open, via=via)
        put(m.RELAY_CONNECTIONS, None if counts is None else counts.connections, via=via)
        put(m.RELAY_REFUSALS, None if counts is None else counts.refusals, via=via)
        put(m.RELAY_FAILURES, None if counts is None else counts.failures, via=via)
        put(m.RELAY_BYTES, None if counts is None else counts.bytes_up, via=via, direction="up")
        put(m.RELAY_BYTES, None if counts is None else counts.bytes_down, via=via, direction="down")


def _count(connection: sqlite3.Connection) -> dict[str, int]:
    rows = connection.execute("SELECT state, count(*) FROM runs WHERE state != 'finished' GROUP BY state")
    return {row[0]: row[1] for row in rows}
