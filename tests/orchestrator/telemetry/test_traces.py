"""Traces, as a real OTLP receiver on loopback gets them; and receivers that refuse, hang, or are not there."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config.environment import TracesTarget
from orchestrator.contract.traces import NO_TRACES, RunTrace, Step
from orchestrator.errors import ConfigError
from orchestrator.telemetry import open_traces
from orchestrator.telemetry.otlp import MAX_WAITING, OtlpTraces
from tests.fakes.metrics import FakeMetrics
from tests.fakes.otlp import Collector, collector

RUN = "0af7651916cd43dd8448eb211c80319d"
OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{OTHER_TRACE}-b7ad6b7169203331-01"


def trace(run_id: str = RUN, **over: Any) -> RunTrace:
    steps = (Step(name="queue", began=100, ended=200), Step(name="start", began=200, ended=300, failed=True))
    values: dict[str, Any] = {
        "run_id": run_id,
        "traceparent": None,
        "began": 100,
        "ended": 500,
        "failed": True,
        "attributes": {"podmentor.backend": "codex", "podmentor.tier": 1},
        "steps": steps,
    }
    return RunTrace(**{**values, **over})


def target(url: str) -> TracesTarget:
    return TracesTarget(
        url=f"{url}/v1/traces", service_name="agents", named_by="telemetry.otlp_endpoint", asked_of_us=True
    )


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES", "http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
async def receiver() -> AsyncIterator[Collector]:
    async with collector() as found:
        yield found


@asynccontextmanager
async def sending(url: str, metrics: FakeMetrics | None = None, **options: Any) -> AsyncIterator[OtlpTraces]:
    traces = await asyncio.to_thread(
        lambda: OtlpTraces(target(url), version="1.2.3", instance="i", metrics=metrics or FakeMetrics(), **options)
    )
    try:
        yield traces
    finally:
        await traces.aclose()


async def test_a_run_with_its_steps(receiver: Collector) -> None:
    async with sending(receiver.url) as traces:
        traces.run_ended(trace())
        await receiver.until(spans=3)
    root, queue, start = receiver.spans
    assert (root.name, root.trace_id.hex(), root.parent_span_id) == ("run", RUN, b"")
    assert root.span_id == hashlib.sha256(f"{RUN}/".encode()).digest()[:8]
    assert (root.start_time_unix_nano, root.end_time_unix_nano, root.status.code) == (100, 500, 2)
    assert {one.key: one.value.string_value or one.value.int_value for one in root.attributes} == {
        "podmentor.backend": "codex",
        "podmentor.tier": 1,
    }
    assert [(one.name, one.status.code) for one in (queue, start)] == [("queue", 0), ("start", 2)]
    assert {one.trace_id.hex() for one in receiver.spans} == {RUN}
    assert queue.parent_span_id == start.parent_span_id == root.span_id
    assert len({one.span_id for one in receiver.spans}) == 3
    [resource] = receiver.resources
    assert {
        "service.name": "agents",
        "service.version": "1.2.3",
        "service.instance.id": "i",
    }.items() <= resource.items()


async def test_it_hangs_below_the_callers_span(receiver: Collector) -> None:
    async with sending(receiver.url) as traces:
        traces.run_ended(trace(traceparent=PARENT))
        await receiver.until(spans=3)
    root, *steps = receiver.spans
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (OTHER_TRACE, "b7ad6b7169203331")
    assert {one.parent_span_id for one in steps} == {root.span_id}


async def test_a_caller_that_does_not_keep_its_trace_gets_none(receiver: Collector) -> None:
    async with sending(receiver.url) as traces:
        traces.run_ended(trace(traceparent=PARENT[:-2] + "00"))
        traces.run_ended(trace("f" * 32, traceparent="rubbish"))
        await receiver.until(spans=3)
    assert {one.trace_id.hex() for one in receiver.spans} == {"f" * 32}


async def test_what_waits_at_the_end_is_sent(receiver: Collector) -> None:
    async with sending(receiver.url) as traces:
        for number in range(250):
            traces.run_ended(trace(f"{number + 1:032x}"))
    assert len(receiver.spans) == 750
    assert not alive()


async def test_the_exporters_own_variables_count(receiver: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret-of-the-collector")
    async with sending(receiver.url) as traces:
        traces.run_ended(trace())
        await receiver.until(spans=3)
    assert receiver.headers[0]["x-key"] == "secret-of-the-collector"


async def test_a_collector_that_refuses_is_told_once_and_once_more_when_it_is_back(
    receiver: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = FakeMetrics()
    receiver.status = 400
    async with sending(receiver.url, metrics) as traces:
        for asked in range(1, 4):
            traces.run_ended(trace())
            await receiver.until(asked=asked)
        receiver.status = 200
        traces.run_ended(trace())
        await receiver.until(spans=3)
    reported = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert reported == [
        f"traces are not taken by {receiver.url}/v1/traces: dropped, until it takes them again",
        f"traces are taken again by {receiver.url}/v1/traces",
    ]
    assert metrics.of("trace_runs_dropped") == {"trace_runs_dropped_total": 3}


async def test_nobody_is_there(receiver: Collector, caplog: pytest.LogCaptureFixture) -> None:
    metrics = FakeMetrics()
    async with sending("http://127.0.0.1:1", metrics, export_seconds=0.2) as traces:
        for _ in range(300):
            traces.run_ended(trace())
    assert metrics.of("trace_runs_dropped") == {"trace_runs_dropped_total": 300}
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_collector_that_hangs_holds_up_neither_runs_nor_the_end(receiver: Collector) -> None:
    receiver.hang.clear()
    metrics = FakeMetrics()
    began = time.monotonic()
    async with sending(receiver.url, metrics, flush_seconds=0.2) as traces:
        traces.run_ended(trace())
        await receiver.until(asked=1)
        for _ in range(MAX_WAITING + 10):
            traces.run_ended(trace())  # a call that blocked would never return
        assert metrics.of("trace_runs_dropped") == {"trace_runs_dropped_total": 10}
    assert time.monotonic() - began < 20, "closed although the collector has not answered"
    receiver.hang.set()


def test_without_an_endpoint_nothing_is_loaded_and_no_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"loads {name}"))
    before = threading.active_count()
    assert open_traces(None, version="1", instance="i") is NO_TRACES
    assert threading.active_count() == before


@pytest.fixture
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "orchestrator.telemetry.otlp")
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("_not_installed")
def test_what_is_not_installed_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"telemetry.otlp_endpoint asks.*pip install 'podmentor\[otel\]'"):
        open_traces(target("http://127.0.0.1:1"), version="1", instance="i")


@pytest.mark.usefixtures("_not_installed")
def test_a_variable_that_is_there_for_others_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    theirs = replace(target("http://127.0.0.1:1"), named_by="$OTEL_EXPORTER_OTLP_ENDPOINT", asked_of_us=False)
    assert open_traces(theirs, version="1", instance="i") is NO_TRACES
    assert "pip install 'podmentor[otel]'" in caplog.text


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "traces"]
