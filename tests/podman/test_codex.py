"""The real Codex CLI in its container against the scripted provider, through the whole service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, eventually, live_service, processes_with
from tests.podman.test_claude_code import assert_nothing_left, shape

pytestmark = pytest.mark.podman


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    async with live_service(tmp_path, provider.base_url, backend_name="codex") as service:
        yield service


async def test_a_plain_answer(service: LiveService, provider: ScriptedProvider) -> None:
    answer = await service.call("POST", "/v1/runs?wait=1", json={"backend": "codex", "query": "Please greet me."})
    run = answer["run"]
    assert run["outcome"] == "completed", run["error"]
    assert answer["envelope"] == (
        f"[Subagent ID: {run['subagent_id']} - Use this ID to continue this conversation] "
        "Hello from the scripted provider. There is nothing else to do."
    )
    events = await service.all_events(run["run_id"])
    assert shape(events) == [
        "status:queued", "status:starting", "status:running", "session_started", "message_delta", "completed",
    ]  # fmt: skip
    assert run["usage"]["tokens"]["input"] == 1200
    assert run["exit_code"] == 0
    assert run["cli_version"] == "0.171.0"
    # One request, to the gateway: the CLI looks for nothing else.
    assert [(request.method, request.path) for request in provider.requests] == [("POST", "/v1/responses")]
    await assert_nothing_left(service, run["run_id"])


async def test_an_edit_is_seen_in_the_overlay_and_not_in_the_repo(service: LiveService, repo: Path) -> None:
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    run = await service.submit("scenario: edit", repo=str(repo))
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    uses = [e["data"] for e in events if e["kind"] == "tool_use"]
    assert [(use["name"], use["input"]) for use in uses] == [
        ("Edit", {"changes": [{"path": "/workspace/note.txt", "kind": kind}]}) for kind in ("add", "update")
    ]
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
    "huge": ("completed", ""),
    "401": ("failed", "auth_rejected"),
    "403": ("failed", "auth_rejected"),
    "credit": ("failed", "credit_exhausted"),
    "429": ("failed", "rate_limited"),
    "busy": ("failed", "rate_limited"),
    "500": ("failed", "provider_unavailable"),
    "529": ("failed", "provider_unavailable"),
    "cut": ("failed", "provider_unavailable"),
    "torn": ("failed", "provider_unavailable"),
    "maxtok": ("failed", "cli_failed"),
}


async def test_every_scenario_ends_as_it_should(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with live_service(
        tmp_path, provider.base_url, backend_name="codex", runs={"max_concurrent": 6}
    ) as service:  # fmt: skip
        runs = {name: await service.submit(f"scenario: {name}") for name in SCENARIOS}
        seen: dict[str, tuple[str, str]] = {}
        for name, run in runs.items():
            record = await service.finished(run["run_id"], seconds=60)
            seen[name] = (record["outcome"], (record["error"] or {}).get("reason", ""))
        assert seen == SCENARIOS
        events = {name: await service.all_events(run["run_id"]) for name, run in runs.items()}
        for name in ("401", "busy", "500", "529", "cut", "torn"):
            retries = [e["data"]["attempt"] for e in events[name] if e["data"].get("phase") == "retrying"]
            assert retries == [1, 2, 3, 4], name
        assert "thinking" in shape(events["thinking"])
        # The CLI prints the answer that broke off once for each attempt.
        assert [e["data"]["text"] for e in events["cut"] if e["kind"] == "message_delta"] == ["This answer breaks"]
        results = [e["data"] for e in events["fail"] if e["kind"] == "tool_result"]
        assert [(result["content"], result["is_error"]) for result in results] == [("out\nerr\n", True)]
        # Codex prints no line for a tool that it does not know; its log on stderr is all there is.
        notes = [e["data"]["stderr"] for e in events["badtool"] if e["data"].get("phase") == "diagnostic"]
        assert any("no_such_tool" in note for note in notes)
        text = "".join(e["data"]["text"] for e in events["huge"] if e["kind"] == "message_delta")
        assert text.count("\n") >= 40_000 - 1
        for run in runs.values():
            await assert_nothing_left(service, run["run_id"])


async def test_a_following_run_remembers_and_counts_its_own_tokens(service: LiveService) -> None:
    first = await service.submit("My name is Ada.\nscenario: remember")
    before = await service.finished(first["run_id"])
    assert before["usage"]["tokens"]["input"] == 1200
    for number in (2, 3):
        run = await service.submit("What is my name?\nscenario: remember", subagent_id=first["subagent_id"])
        record = await service.finished(run["run_id"])
        assert record["outcome"] == "completed", record["error"]
        assert f"prompt number {number}" in record["final_text"]
        assert "Ada" in record["final_text"]
        # The CLI itself says 1200 more each time.
        assert record["usage"]["tokens"] == before["usage"]["tokens"]


async def test_a_thread_that_the_cli_has_lost_is_a_clear_error(service: LiveService) -> None:
    first = await service.submit("Hello.")
    await service.finished(first["run_id"])
    home = service.state / "subagents" / first["subagent_id"] / "home"
    rollouts = list(home.rglob("rollout-*.jsonl"))
    assert rollouts
    for rollout in rollouts:
        rollout.unlink()
    second = await service.submit("Go on.", subagent_id=first["subagent_id"])
    record = await service.finished(second["run_id"])
    assert record["error"]["reason"] == "resume_failed"


async def test_cancel_in_the_middle_of_a_tool_leaves_no_process(service: LiveService) -> None:
    marker = "sleep 4243"
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
    run = await service.submit("scenario: hang", limits={"wall_clock_seconds": 4})
    record = await service.finished(run["run_id"], seconds=60)
    assert record["error"]["reason"] == "timeout"
    await assert_nothing_left(service, run["run_id"])


SEARCH = """scenario: dump
RUN:
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
find /home/agent /tmp /run/podmentor /workspace -type f -exec cat {} + 2>/dev/null | tr -cd '[:print:]\\n' | head -c 900000
curl -sS -m 10 -o /dev/null -w 'models=%{http_code}\\n' -H "Authorization: Bearer $OPENAI_API_KEY" http://127.0.0.1:8080/v1/models
curl -sS -m 10 -o /dev/null -w 'files=%{http_code}\\n' -H "Authorization: Bearer $OPENAI_API_KEY" http://127.0.0.1:8080/v1/files
"""


async def test_the_key_is_nowhere_in_the_container(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit(SEARCH)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    printed = "".join(e["data"]["content"] for e in events if e["kind"] == "tool_result")
    assert "CODEX_API_KEY=" in printed, "the search itself must have worked"
    assert "session_meta" in printed, "and have read the CLI's own files"
    assert "models=200" in printed
    assert "files=404" in printed
    assert {request.key for request in provider.requests} == {REAL_KEY}, "and the provider must have seen the key"
    assert REAL_KEY not in json.dumps(events)
    assert processes_with(REAL_KEY) == []
    for path in [p for root in (service.state, service.runtime) for p in root.rglob("*") if p.is_file()]:
        assert REAL_KEY.encode() not in path.read_bytes(), path
    assert REAL_KEY not in service.output.read_text()


async def test_tier_0_answers_as_well(service: LiveService) -> None:
    run = await service.submit("scenario: shell", tier=0)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert record["final_text"] == "The command printed hi."


async def test_no_other_host_is_looked_for(service: LiveService) -> None:
    """Tier 1 has no network: a CLI that looks for other hosts would wait, try again or complain."""
    run = await service.submit("Hello.", limits={"wall_clock_seconds": 20})
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    assert not [e for e in events if e["data"].get("phase") in {"diagnostic", "retrying", "unparsed"}]
