"""The real OpenCode CLI in its container against the scripted provider, through the whole service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, eventually, live_service, processes_with
from tests.podman.test_claude_code import assert_nothing_left, shape

pytestmark = pytest.mark.podman

SCRIPTED = {"extra_env": {"OPENCODE_MODEL": "scripted"}}
"""OpenCode offers other tools for models of the GPT family."""


@pytest.fixture
async def opencode(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    async with live_service(tmp_path, provider.base_url, backend_name="opencode", backend=SCRIPTED) as service:
        yield service


def joined(events: list[dict[str, Any]], kind: str) -> str:
    return "".join(e["data"]["text"] for e in events if e["kind"] == kind and e["parent_tool_call_id"] is None)


async def test_a_plain_answer_comes_in_pieces(opencode: LiveService, provider: ScriptedProvider) -> None:
    answer = await opencode.call("POST", "/v1/runs?wait=1", json={"backend": "opencode", "query": "Please greet me."})
    run = answer["run"]
    assert run["outcome"] == "completed", run["error"]
    assert run["final_text"] == "Hello from the scripted provider. There is nothing else to do."
    events = await opencode.all_events(run["run_id"])
    assert shape(events) == [
        "status:queued", "status:starting", "status:running", "session_started", "message_delta", "completed",
    ]  # fmt: skip
    assert sum(e["kind"] == "message_delta" for e in events) > 3
    assert joined(events, "message_delta") == run["final_text"]
    started, ended = events[3]["data"], events[-1]["data"]
    assert started["model"] == "scripted"
    assert started["cli_version"] == run["cli_version"]
    assert ended["stop_reason"] == "stop"
    assert ended["tokens"]["input"] + ended["tokens"]["cache_read"] == 1200
    # One request: neither a title nor a list of models is asked for, and no limit that some models refuse.
    assert [(request.method, request.path) for request in provider.requests] == [("POST", "/chat/completions")]
    assert provider.requests[0].body["model"] == "scripted"
    assert not {"max_tokens", "max_completion_tokens"} & provider.requests[0].body.keys()
    await assert_nothing_left(opencode, run["run_id"])


@pytest.mark.parametrize(("extra_env", "tools"), [
    ({"OPENCODE_MODEL": "scripted"}, ["write", "edit"]),
    ({}, ["apply_patch", "apply_patch"]),
])  # fmt: skip
async def test_an_edit_is_seen_in_the_overlay_and_not_in_the_repo(
    tmp_path: Path, provider: ScriptedProvider, repo: Path, extra_env: dict[str, str], tools: list[str]
) -> None:
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    backend = {"extra_env": extra_env}
    async with live_service(tmp_path, provider.base_url, backend_name="opencode", backend=backend) as service:
        run = await service.submit("scenario: edit", repo=str(repo))
        record = await service.finished(run["run_id"])
        assert record["outcome"] == "completed", record["error"]
        events = await service.all_events(run["run_id"])
        assert [e["data"]["name"] for e in events if e["kind"] == "tool_use"] == tools
        assert [e["data"]["is_error"] for e in events if e["kind"] == "tool_result"] == [False, False]
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
    "404": ("failed", "cli_failed"),
    "credit": ("failed", "credit_exhausted"),
    "busy": ("failed", "rate_limited"),
    "429": ("failed", "rate_limited"),
    "500": ("failed", "provider_unavailable"),
    "529": ("failed", "provider_unavailable"),
    "cut": ("failed", "provider_unavailable"),
    "torn": ("failed", "provider_unavailable"),
    "broken": ("failed", "provider_unavailable"),
    "maxtok": ("failed", "cli_failed"),
}


async def test_every_scenario_ends_as_it_should(tmp_path: Path, provider: ScriptedProvider) -> None:
    limits = {"runs": {"max_concurrent": 5}, "backend": SCRIPTED}
    async with live_service(tmp_path, provider.base_url, backend_name="opencode", **limits) as service:
        runs = {name: await service.submit(f"scenario: {name}") for name in SCENARIOS}
        seen: dict[str, tuple[str, str]] = {}
        events: dict[str, list[dict[str, Any]]] = {}
        for name, run in runs.items():
            record = await service.finished(run["run_id"], seconds=300)
            seen[name] = (record["outcome"], (record["error"] or {}).get("reason", ""))
            events[name] = await service.all_events(run["run_id"])
            assert not [e for e in events[name] if e["data"].get("phase") == "unparsed"], name
        assert seen == SCENARIOS
        for name in ("busy", "429", "500", "529", "cut", "torn", "broken"):
            retries = [e["data"] for e in events[name] if e["data"].get("phase") == "retrying"]
            assert [retry["attempt"] for retry in retries] == [1, 2, 3], name
        assert "(HTTP 429)" in str([e["data"].get("cause") for e in events["429"]])
        assert joined(events["thinking"], "thinking") == "The user wants a greeting. I keep it short."
        assert joined(events["utf8"], "message_delta").startswith("Grüße 🌍")
        assert joined(events["huge"], "message_delta").count("\n") >= 40_000 - 1
        results = {name: [e["data"]["is_error"] for e in events[name] if e["kind"] == "tool_result"] for name in runs}
        assert results["shell"] == [False]
        assert results["tools2"] == [False, False]
        assert results["fail"] == [True]
        assert results["badtool"] == [True]
        delegated = [e for e in events["delegate"] if e["kind"] in {"thinking", "tool_use", "message_delta"}]
        calls = [e["data"]["tool_call_id"] for e in delegated if e["kind"] == "tool_use"]
        assert {e["parent_tool_call_id"] for e in delegated} == {None, calls[0]}
        for run in runs.values():
            await assert_nothing_left(service, run["run_id"])


async def test_a_wait_that_is_too_long_is_not_waited_for(tmp_path: Path, provider: ScriptedProvider) -> None:
    backend = {"extra_env": {"OPENCODE_MODEL": "scripted", "OPENCODE_MAX_RETRY_SECONDS": "0"}}
    async with live_service(tmp_path, provider.base_url, backend_name="opencode", backend=backend) as service:
        run = await service.submit("scenario: busy")
        record = await service.finished(run["run_id"])
    assert record["error"]["reason"] == "rate_limited"
    assert record["error"]["details"]["retries"] == 0
    assert len(provider.requests) == 1


async def test_a_following_run_remembers(opencode: LiveService) -> None:
    first = await opencode.submit("My name is Ada.\nscenario: remember")
    await opencode.finished(first["run_id"])
    second = await opencode.submit("What is my name?\nscenario: remember", subagent_id=first["subagent_id"])
    record = await opencode.finished(second["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "prompt number 2" in record["final_text"]
    assert "Ada" in record["final_text"]
    started = [
        next(
            e["data"]["session_id"] for e in await opencode.all_events(run["run_id"]) if e["kind"] == "session_started"
        )
        for run in (first, second)
    ]
    assert started[0] == started[1]


async def test_a_session_that_the_cli_has_lost_is_a_clear_error(opencode: LiveService) -> None:
    first = await opencode.submit("Hello.")
    await opencode.finished(first["run_id"])
    for database in (opencode.state / "subagents" / first["subagent_id"] / "home").rglob("opencode.db*"):
        database.unlink()
    second = await opencode.submit("Go on.", subagent_id=first["subagent_id"])
    record = await opencode.finished(second["run_id"])
    assert record["error"]["reason"] == "resume_failed"


async def test_cancel_in_the_middle_of_a_tool_leaves_no_process(opencode: LiveService) -> None:
    marker = "sleep 4343"
    run = await opencode.submit(f"scenario: dump\nRUN: (setsid sh -c 'trap \"\" INT TERM HUP; {marker}' &) ; {marker}")
    await opencode.until(run["run_id"], "tool_use")
    await eventually(lambda: len(processes_with(marker.replace(" ", "\0"))) >= 2)
    await opencode.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await opencode.finished(run["run_id"], seconds=60)
    assert record["outcome"] == "cancelled"
    assert processes_with(marker.replace(" ", "\0")) == []
    await assert_nothing_left(opencode, run["run_id"])


async def test_the_wall_clock_ends_a_run(opencode: LiveService) -> None:
    run = await opencode.submit("scenario: hang", limits={"wall_clock_seconds": 15})
    record = await opencode.finished(run["run_id"], seconds=90)
    assert record["error"]["reason"] == "timeout"
    await assert_nothing_left(opencode, run["run_id"])


async def test_no_other_host_is_asked_for_and_the_real_key_is_nowhere(
    opencode: LiveService, provider: ScriptedProvider
) -> None:
    look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /run/podmentor/prompt"
    run = await opencode.submit(f"scenario: dump\nRUN: {look}")
    record = await opencode.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "OPENCODE_CONFIG_CONTENT" in record["final_text"]
    told = str(await opencode.all_events(run["run_id"]))
    assert REAL_KEY not in told
    assert {request.key for request in provider.requests} == {REAL_KEY}
    for path in [*opencode.state.rglob("*"), *opencode.runtime.rglob("*")]:
        if path.is_file():
            assert REAL_KEY.encode() not in path.read_bytes(), path
    home = opencode.state / "subagents" / run["subagent_id"] / "home"
    left = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    # No package is fetched, no settings are written: only the CLI's own data.
    assert all(name.startswith((".local/share/opencode/", ".local/state/opencode/")) for name in left), left
