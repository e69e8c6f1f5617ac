"""Traces over OTLP/HTTP, sent by a thread of their own.  The only module that imports OpenTelemetry.

Spans are made when a run has ended, from times that were noted: so none is lost in a service that restarts meanwhile,
and a run costs nothing but a place in a queue.  The ids of a run's spans follow from its run id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from orchestrator.config.environment import TracesTarget
from orchestrator.contract.metrics import NO_METRICS, TRACES_DROPPED, Metrics
from orchestrator.contract.traces import RunTrace, parse_traceparent

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
"""Runs whose spans wait to be sent; what comes beyond is dropped and counted."""
BATCH: Final = 100
EXPORT_SECONDS: Final = 10.0
"""What one batch may take, with its retries."""
FLUSH_SECONDS: Final = 2.0
"""What the end of the service may be held up for."""
_CHATTY: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class OtlpTraces:
    """Implements ``Traces``."""

    enabled: Final = True

    def __init__(
        self,
        target: TracesTarget,
        *,
        version: str,
        instance: str,
        metrics: Metrics = NO_METRICS,
        export_seconds: float = EXPORT_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._url = target.url
        self._metrics = metrics
        self._flush_seconds = flush_seconds
        self._resource = Resource.create(
            {"service.name": target.service_name, "service.version": version, "service.instance.id": instance}
        )
        self._exporter = OTLPSpanExporter(endpoint=target.url, timeout=export_seconds)
        self._queue: queue.Queue[RunTrace | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._failing = False
        # A daemon: what a collector that hangs is doing must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def run_ended(self, trace: RunTrace) -> None:
        """Put it into the queue."""
        parent = parse_traceparent(trace.traceparent)
        if parent is not None and not parent.sampled:
            return  # whoever asked does not keep this trace
        try:
            self._queue.put_nowait(trace)
        except queue.Full:
            self._metrics.add(TRACES_DROPPED)

    async def aclose(self) -> None:
        """Send what waits, for ``flush_seconds`` at most."""
        self._closing.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            log.debug("the traces that wait are more than can be sent now")
        await asyncio.to_thread(self._thread.join, self._flush_seconds)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends the pause between two attempts

    def _work(self) -> None:
        with _quiet():
            while batch := self._next():
                self._send(batch)
                if self._closing.is_set() and self._queue.empty():
                    return

    def _next(self) -> list[RunTrace]:
        """Some traces; none: it is time to end."""
        first = self._queue.get()
        batch = [] if first is None else [first]
        while len(batch) < BATCH:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is not None:
                batch.append(more)
        return batch

    def _send(self, batch: list[RunTrace]) -> None:
        try:
            spans = [span for trace in batch for span in _spans(trace, self._resource)]
            good = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            log.exception("traces could not be made")
            good = False
        if not good:
            self._metrics.add(TRACES_DROPPED, len(batch))
        if good is self._failing:
            self._failing = not good
            if good:
                log.warning("traces are taken again by %s", self._url)
            else:
                log.warning("traces are not taken by %s: dropped, until it takes them again", self._url)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter would report every attempt; that traces are not taken is said once, by us."""
    chatty = logging.getLogger(_CHATTY)
    before, chatty.disabled = chatty.disabled, True
    try:
        yield
    finally:
        chatty.disabled = before


def _spans(trace: RunTrace, resource: Resource) -> Iterator[ReadableSpan]:
    """The run and its steps."""
    given = parse_traceparent(trace.traceparent)
    trace_id = int(trace.run_id, 16) if given is None else given.trace_id
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def context(name: str) -> SpanContext:
        number = int.from_bytes(hashlib.sha256(f"{trace.run_id}/{name}".encode()).digest()[:8]) or 1
        return SpanContext(trace_id, number, is_remote=False, trace_flags=sampled)

    parent = None if given is None else SpanContext(trace_id, given.span_id, is_remote=True, trace_flags=sampled)
    scope = InstrumentationScope("podmentor")
    root = context("")
    yield ReadableSpan(
        name="run",
        context=root,
        parent=parent,
        resource=resource,
        attributes=trace.attributes,
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if trace.failed else StatusCode.OK),
        start_time=trace.began,
        end_time=trace.ended,
        instrumentation_scope=scope,
    )
    for number, step in enumerate(trace.steps):
        yield ReadableSpan(
            name=step.name,
            context=context(f"{step.name}/{number}"),
            parent=root,
            resource=resource,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if step.failed else StatusCode.UNSET),
            start_time=step.began,
            end_time=step.ended,
            instrumentation_scope=scope,
        )
