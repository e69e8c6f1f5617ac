"""The page that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.contract import metrics as m
from orchestrator.telemetry import PrometheusMetrics, prometheus

ROOT = Path(__file__).parents[3]


async def samples(metrics: PrometheusMetrics) -> dict[str, float]:
    """By name and labels."""
    text = (await metrics.page()).decode()
    return {
        f"{one.name}{sorted(one.labels.items())}" if one.labels else one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def test_what_was_counted_measured_and_put() -> None:
    metrics = PrometheusMetrics()
    metrics.add(m.RUNS_ENDED, backend="codex", outcome="failed", reason="timeout")
    metrics.add(m.RUNS_ENDED, 2, backend="codex", outcome="failed", reason="timeout")
    metrics.add(m.AUDIT_LINES)
    metrics.observe(m.START_SECONDS, 0.3, backend="codex")
    metrics.observe(m.APPEND_SECONDS, 0.3)
    metrics.put(m.RUNS, 4, state="queued")
    metrics.put(m.RELAY_BYTES, 10, via="gateway", direction="up")
    found = await samples(metrics)
    labels = [("backend", "codex"), ("outcome", "failed"), ("reason", "timeout")]
    assert found[f"podmentor_runs_ended_total{labels}"] == 3
    assert found["podmentor_audit_lines_total"] == 1
    assert found["podmentor_audit_failures_total"] == 0
    assert found["podmentor_start_seconds_count[('backend', 'codex')]"] == 1
    assert found["podmentor_start_seconds_bucket[('backend', 'codex'), ('le', '0.25')]"] == 0
    assert found["podmentor_start_seconds_bucket[('backend', 'codex'), ('le', '0.5')]"] == 1
    assert found["podmentor_journal_append_seconds_sum"] == 0.3
    assert found["podmentor_runs[('state', 'queued')]"] == 4
    assert found["podmentor_relay_bytes_total[('direction', 'up'), ('via', 'gateway')]"] == 10
    assert found["process_start_time_seconds"] > 0
    assert not [name for name in found if "_created" in name]


async def test_a_value_that_is_not_known_any_more_is_gone() -> None:
    metrics = PrometheusMetrics()
    metrics.put(m.RELAY_REQUESTS, 5)
    assert (await samples(metrics))["podmentor_relay_requests_total"] == 5
    metrics.put(m.RELAY_REQUESTS, None)
    assert "podmentor_relay_requests_total" not in await samples(metrics)


@pytest.mark.parametrize("labels", [{}, {"backend": "x"}, {"state": "queued", "backend": "x"}])
def test_labels_that_are_not_the_instruments_are_a_bug(labels: dict[str, str]) -> None:
    metrics = PrometheusMetrics()
    with pytest.raises(ValueError, match=r"label|remaining|Incorrect"):
        metrics.put(m.RUNS, 1, **labels)
    with pytest.raises(ValueError, match=r"label|remaining|Incorrect"):
        metrics.add(m.RUNS_ENDED, 1, **labels)


async def test_probes_are_asked_before_each_page_and_may_fail_or_hang(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PROBE_SECONDS", 0.05)
    metrics, asked = PrometheusMetrics(), []

    async def good() -> None:
        asked.append(1)
        metrics.put(m.READY, len(asked))

    async def bad() -> None:
        raise OSError("no such thing")

    async def hanging() -> None:
        await asyncio.Event().wait()

    for probe in (bad, good):
        metrics.before_page(probe)
    assert (await samples(metrics))["podmentor_ready"] == 1
    assert "no such thing" in caplog.text
    metrics.before_page(hanging)
    assert (await samples(metrics))["podmentor_ready"] == 2
    assert "were not reported within" in caplog.text


def test_two_services_in_a_process_do_not_meet() -> None:
    before = {family.name for family in REGISTRY.collect()}
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.add(m.AUDIT_LINES)
    assert b"podmentor_audit_lines_total 0.0" in asyncio.run(other.page())
    assert {family.name for family in REGISTRY.collect()} == before


def test_the_names_follow_prometheus_rules() -> None:
    assert len({one.name for one in m.INSTRUMENTS}) == len(m.INSTRUMENTS)
    for one in m.INSTRUMENTS:
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert (one.kind == "histogram") == bool(one.buckets)
        assert list(one.buckets) == sorted(set(one.buckets))
        assert not {"user", "user_id", "host", "run", "run_id", "path", "subagent_id"} & set(one.labels), one.name
    every = {id(value) for value in vars(m).values() if isinstance(value, m.Instrument)}
    assert every == {id(one) for one in m.INSTRUMENTS}


def test_nothing_but_the_composition_root_loads_the_libraries() -> None:
    """The command stays quick: neither library is imported by what it always needs."""
    code = (
        "import sys, orchestrator.cli.main, orchestrator.runs.supervisor, orchestrator.api.app, orchestrator.telemetry.traces;"
        "print([name for name in ('opentelemetry', 'prometheus_client') if name in sys.modules and name == 'opentelemetry'])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
