"""The real Claude Code CLI in its container, through the API of the whole service; more scenes are in test_backends."""

from __future__ import annotations

from typing import Any

from tests.podman.live import LiveService
from tests.podman.live import assert_nothing_left as assert_nothing_left  # noqa: PLC0414  # for other modules
from tests.podman.shared import MARKS
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import module_service as module_service  # noqa: PLC0414
from tests.podman.shared import provider as provider  # noqa: PLC0414
from tests.podman.shared import service as service  # noqa: PLC0414

pytestmark = MARKS


def shape(events: list[dict[str, Any]]) -> list[str]:
    """Kinds with phases, repetitions folded."""
    names = [f"status:{e['data']['phase']}" if e["kind"] == "status" else e["kind"] for e in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


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
        "status:queued",
        "status:starting",
        "status:running",
        "session_started",
        "message_delta",
        "completed",
    ]
    assert "".join(e["data"]["text"] for e in events if e["kind"] == "message_delta") == run["final_text"]
    assert run["usage"]["tokens"]["input"] > 0
    assert run["usage"]["peak_memory_bytes"] > 50_000_000
    assert run["exit_code"] == 0
    assert run["cli_version"] == events[3]["data"]["cli_version"]
    assert run["enforcement"]["memory_max_bytes"] in {"cgroup", "watchdog"}
    await assert_nothing_left(service, run["run_id"])


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
