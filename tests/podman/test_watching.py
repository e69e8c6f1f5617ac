"""Numbers, traces and the audit log of a real service, over a kill."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.scripted import ScriptedProvider
from tests.fakes.otlp import collector
from tests.podman.live import PROJECT, LiveService, assert_nothing_left, live_service

pytestmark = pytest.mark.podman
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def command(service: LiveService, *argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        "--config",
        str(service.config),
        *argv,
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out.decode()


async def numbers(service: LiveService, token: str) -> dict[str, float]:
    async with (
        aiohttp.ClientSession(
            "http://localhost", connector=aiohttp.UnixConnector(str(service.runtime / "api.sock"))
        ) as session,
        session.get("/metrics", headers={"Authorization": f"Bearer {token}"}) as response,
    ):
        assert response.status == 200
        text = await response.text()
    return {
        "/".join([one.name.removeprefix("podmentor_"), *(one.labels[name] for name in sorted(one.labels))]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def test_a_run_over_a_kill_is_counted_traced_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with collector() as receiver, ScriptedProvider(scenario="slow") as provider:
        await provider.hold("slow")
        async with live_service(tmp_path, provider.base_url, telemetry={"otlp_endpoint": receiver.url}) as service:
            token = (await command(service, "token", "create", "prometheus", "--role", "metrics")).strip()
            body = {"backend": "claude-code", "query": "SECRET-PROMPT"}
            run = await service.call("POST", "/v1/runs", json=body, headers={"traceparent": PARENT})
            await provider.reached("slow", timeout=60)
            # the CLI asks the provider when it likes; a run is running once the journal has the CLI's first output
            await service.until(run["run_id"], "session_started")
            before = await numbers(service, token)
            assert (before["runs/running"], before["relay_up"], before["relay_open_connections/gateway"] > 0) == (
                1,
                1,
                True,
            )
            assert before["start_seconds_count/claude-code"] == 1
            assert before["podman_call_seconds_count/containers.create"] == 1
            await service.kill()
            await service.start()
            await provider.release("slow")
            record = await service.finished(run["run_id"])
            assert record["outcome"] == "completed", record["error"]
            after = await numbers(service, token)
            assert after["runs_ended_total/claude-code/completed/"] == 1
            assert after["events_total/completed/agent"] == 1
            assert "events_total/session_started/agent" not in after, "that was counted by the service before"
            assert after["relay_requests_total"] >= before["relay_requests_total"] > 0, "the relay's counts go on"
            assert after["relay_bytes_total/down/gateway"] > 0
            await receiver.until(spans=3)
            root = receiver.spans[0]
            assert (root.name, root.trace_id.hex(), root.parent_span_id.hex()) == ("run", PARENT[3:35], PARENT[36:52])
            assert [span.name for span in receiver.spans[1:]] == ["queue", "running", "teardown"]
            shown = [
                json.loads(line)
                for line in (
                    await command(service, "audit", "show", "--run", run["run_id"][:12], "--json")
                ).splitlines()
            ]
            facts: list[tuple[Any, ...]] = [(line["event"], line["actor"]) for line in shown]
            assert facts == [
                ("run.submitted", "admin:local"),
                ("credential.used", "service"),
                ("run.started", "service"),
                ("credential.used", "service"),
                ("run.ended", "service"),
            ]
            everything = (service.state / "audit.log").read_text() + str(receiver.spans)
            assert "SECRET-PROMPT" not in everything
            assert "Sentence" not in everything
            await assert_nothing_left(service, run["run_id"])
            assert await service.terminate() == 0
            log = [json.loads(line) for line in (service.state / "audit.log").read_text().splitlines()]
            assert [line["event"] for line in log if line["event"].startswith("service.")] == [
                "service.started",
                "service.started",
                "service.stopped",
            ]


async def test_no_run_starts_while_the_audit_log_cannot_be_written(
    service: LiveService, provider: ScriptedProvider
) -> None:
    log = service.state / "audit.log"
    log.rename(service.state / "aside")
    log.mkdir()
    run = await service.submit("Say hello.")
    record = await service.finished(run["run_id"])
    assert (record["outcome"], record["error"]["details"]["code"]) == ("failed", "storage_failed")
    assert "audit log" in record["error"]["message"]
    assert record["exit_code"] is None
    assert provider.requests == [], "no credential was used"
    missing = service.output.read_text()
    for event in ("run.submitted", "run.ended"):
        assert f'"event":"{event}"' in missing, "what has happened is in the service's own log"
    assert (await service.call("GET", "/readyz"))["ready"]
    log.rmdir()
    again = await service.submit("Say hello.")
    assert (await service.finished(again["run_id"]))["outcome"] == "completed"
    assert f'"run_id":"{again["run_id"]}"' in log.read_text()
    await assert_nothing_left(service, run["run_id"])
