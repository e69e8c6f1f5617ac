"""The real Claude Code CLI in its container against the scripted provider, through the whole service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import LiveService, eventually, podman, processes_with

pytestmark = pytest.mark.podman


def shape(events: list[dict[str, Any]]) -> list[str]:
    """Kinds with phases, repetitions folded."""
    names = [f"status:{e['data']['phase']}" if e["kind"] == "status" else e["kind"] for e in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


async def assert_nothing_left(service: LiveService, run_id: str) -> None:
    labels = await podman("ps", "-a", "--format", "{{.Labels}}")
    assert run_id not in labels
    assert not (service.runtime / run_id).exists()
    assert processes_with(run_id) == []


async def test_a_plain_answer(service: LiveService) -> None:
    answer = await service.call("POST", "/v1/runs?wait=1", json={"backend": "claude-code", "query": "Please greet me."})
    run = answer["run"]
    assert run["outcome"] == "completed", run["error"]
    assert answer["envelope"] == (
        f"[Subagent ID: {run['subagent_id']} - Use this ID to continue this conversation] "
        "Hello from the scripted provider. There is nothing else to do."
    )
    events = await service.all_events(run["run_id"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert shape(events) == [
        "status:queued", "status:starting", "status:running", "session_started", "message_delta", "completed",
    ]  # fmt: skip
    assert "".join(e["data"]["text"] for e in events if e["kind"] == "message_delta") == run["final_text"]
    assert run["usage"]["tokens"]["input"] > 0
    assert run["usage"]["peak_memory_bytes"] > 50_000_000
    assert run["exit_code"] == 0
    assert run["cli_version"] == events[3]["data"]["cli_version"]
    assert run["memory_enforcement"] in {"cgroup", "watchdog"}
    await assert_nothing_left(service, run["run_id"])


async def test_an_edit_is_seen_in_the_overlay_and_not_in_the_repo(service: LiveService, repo: Path) -> None:
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    run = await service.submit("scenario: edit", repo=str(repo))
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    uses = [e["data"] for e in events if e["kind"] == "tool_use"]
    assert [use["name"] for use in uses] == ["Write", "Edit"]
    results = {e["data"]["tool_call_id"]: e["data"] for e in events if e["kind"] == "tool_result"}
    assert [results[use["tool_call_id"]]["is_error"] for use in uses] == [False, False]
    listing = await service.call("GET", f"/v1/subagents/{run['subagent_id']}/changes")
    assert [(c["path"], c["change"]) for c in listing["changes"]] == [("note.txt", "added")]
    assert {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()} == before


SCENARIOS: dict[str, tuple[str, str]] = {
    "thinking": ("completed", ""),
    "shell": ("completed", ""),
    "tools2": ("completed", ""),
    "fail": ("completed", ""),
    "badtool": ("completed", ""),
    "utf8": ("completed", ""),
    "delegate": ("completed", ""),
    "huge": ("completed", ""),
    "401": ("failed", "auth_rejected"),
    "403": ("failed", "auth_rejected"),
    "credit": ("failed", "credit_exhausted"),
    "busy": ("failed", "rate_limited"),
    "500": ("failed", "provider_unavailable"),
    "529": ("failed", "provider_unavailable"),
    "cut": ("failed", "provider_unavailable"),
    "maxtok": ("failed", "cli_failed"),
}


async def test_every_scenario_ends_as_it_should_and_ten_run_at_once(tmp_path: Path, provider: ScriptedProvider) -> None:
    service = LiveService(tmp_path, provider.base_url, runs={"max_concurrent": 10})
    await service.start()
    try:
        runs = {name: await service.submit(f"scenario: {name}") for name in SCENARIOS}
        seen: dict[str, tuple[str, str]] = {}
        for name, run in runs.items():
            record = await service.finished(run["run_id"], seconds=240)
            seen[name] = (record["outcome"], (record["error"] or {}).get("reason", ""))
        assert seen == SCENARIOS
        for name in ("401", "busy", "500"):
            assert "status:retrying" in shape(await service.all_events(runs[name]["run_id"])), name
        thinking = await service.all_events(runs["thinking"]["run_id"])
        assert "thinking" in shape(thinking)
        delegated = await service.all_events(runs["delegate"]["run_id"])
        parents = {e["parent_tool_call_id"] for e in delegated if e["kind"] in {"tool_use", "tool_result"}}
        assert len(parents) == 2
        assert None in parents
        failing = await service.all_events(runs["fail"]["run_id"])
        assert [e["data"]["is_error"] for e in failing if e["kind"] == "tool_result"] == [True]
        huge = await service.all_events(runs["huge"]["run_id"])
        text = "".join(e["data"]["text"] for e in huge if e["kind"] == "message_delta")
        assert text.count("\n") >= 40_000 - 1
        for run in runs.values():
            await assert_nothing_left(service, run["run_id"])
    finally:
        await service.terminate()


async def test_a_following_run_remembers(service: LiveService) -> None:
    first = await service.submit("My name is Ada.\nscenario: remember")
    await service.finished(first["run_id"])
    second = await service.submit("What is my name?\nscenario: remember", subagent_id=first["subagent_id"])
    record = await service.finished(second["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "prompt number 2" in record["final_text"]
    assert "Ada" in record["final_text"]
    subagent = await service.call("GET", f"/v1/subagents/{first['subagent_id']}")
    assert subagent["run_ids"] == [first["run_id"], second["run_id"]]


async def test_a_session_that_the_cli_has_lost_is_a_clear_error(service: LiveService) -> None:
    first = await service.submit("Hello.")
    await service.finished(first["run_id"])
    for transcript in (service.state / "subagents" / first["subagent_id"] / "home").rglob("*.jsonl"):
        transcript.unlink()
    second = await service.submit("Go on.", subagent_id=first["subagent_id"])
    record = await service.finished(second["run_id"])
    assert record["error"]["reason"] == "resume_failed"


async def test_cancel_in_the_middle_of_a_tool_leaves_no_process(service: LiveService) -> None:
    marker = "sleep 4242"
    run = await service.submit(f"scenario: dump\nRUN: (setsid sh -c 'trap \"\" INT TERM HUP; {marker}' &) ; {marker}")
    await service.until(run["run_id"], "tool_use")
    await eventually(lambda: len(processes_with(marker.replace(" ", "\0"))) >= 2)
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await service.finished(run["run_id"], seconds=30)
    assert record["outcome"] == "cancelled"
    assert record["error"]["reason"] == "cancelled"
    assert processes_with(marker.replace(" ", "\0")) == []
    await assert_nothing_left(service, run["run_id"])


async def test_the_wall_clock_ends_a_run(service: LiveService) -> None:
    run = await service.submit("scenario: hang", limits={"wall_clock_seconds": 6})
    record = await service.finished(run["run_id"], seconds=60)
    assert record["error"]["reason"] == "timeout"
    assert record["limits"]["wall_clock_seconds"] == 6
    await assert_nothing_left(service, run["run_id"])


async def test_the_memory_limit_ends_a_run(service: LiveService) -> None:
    hog = "python3 -c 'b = bytearray(700_000_000); import time; time.sleep(600)'"
    run = await service.submit(f"scenario: dump\nRUN: {hog}", limits={"memory_max_bytes": 600_000_000})
    record = await service.finished(run["run_id"], seconds=60)
    assert record["error"]["reason"] == "memory_exceeded"
    assert record["error"]["details"]["limit_bytes"] == 600_000_000
    assert "tool_use" in shape(await service.all_events(run["run_id"]))
    await assert_nothing_left(service, run["run_id"])


async def test_tier_1_has_no_network_and_tier_0_has(service: LiveService) -> None:
    look = "scenario: dump\nRUN: cut -d: -f1 -s /proc/net/dev | tr -d ' '"
    runs = {tier: await service.submit(look, tier=tier) for tier in (0, 1)}
    seen = {tier: (await service.finished(run["run_id"]))["final_text"].split()[3:] for tier, run in runs.items()}
    assert seen[1] == ["lo"]
    assert len(seen[0]) > 1
