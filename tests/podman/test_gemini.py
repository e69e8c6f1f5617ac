"""The real Gemini CLI in its container against the scripted provider, through the whole service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.images_kit import container, run_to_end
from tests.podman.live import REAL_KEY, LiveService, eventually, live_service, podman, processes_with

pytestmark = pytest.mark.podman


def shape(events: list[dict[str, Any]]) -> list[str]:
    """Kinds with phases, repetitions folded; what the CLI says on stderr left out."""
    names = [f"status:{e['data']['phase']}" if e["kind"] == "status" else e["kind"] for e in events]
    names = [name for name in names if name != "status:diagnostic"]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


async def assert_nothing_left(service: LiveService, run_id: str) -> None:
    assert run_id not in await podman("ps", "-a", "--format", "{{.Labels}}")
    assert not (service.runtime / run_id).exists()
    assert processes_with(run_id) == []


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    async with live_service(tmp_path, provider.base_url, backend_name="gemini") as service:
        yield service


async def test_a_plain_answer(service: LiveService, provider: ScriptedProvider) -> None:
    answer = await service.call("POST", "/v1/runs?wait=1", json={"backend": "gemini", "query": "Please greet me."})
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
    assert len([e for e in events if e["kind"] == "message_delta"]) > 1
    assert run["usage"]["tokens"] == {"input": 900, "output": 7, "cache_read": 300, "reasoning": 0}
    assert run["exit_code"] == 0
    assert run["cli_version"] == "0.61.0"
    # One request: nothing is asked before the prompt, behind it, or of anybody else.
    assert [request.path for request in provider.requests] == [
        "/v1beta/models/gemini-3.8-flash:streamGenerateContent",
    ]
    assert {request.key for request in provider.requests} == {REAL_KEY}
    await assert_nothing_left(service, run["run_id"])


async def test_the_operator_chooses_the_model(tmp_path: Path, provider: ScriptedProvider) -> None:
    config = {"extra_env": {"GEMINI_MODEL": "gemini-2.5-pro"}}
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", backend=config) as service:
        run = await service.submit("Please greet me.")
        assert (await service.finished(run["run_id"]))["outcome"] == "completed"
        assert [request.path for request in provider.requests] == [
            "/v1beta/models/gemini-2.5-pro:streamGenerateContent",
        ]
        started = await service.until(run["run_id"], "session_started")
        assert started["data"]["model"] == "gemini-2.5-pro"


async def test_an_edit_is_seen_in_the_overlay_and_not_in_the_repo(service: LiveService, repo: Path) -> None:
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    run = await service.submit("scenario: edit", repo=str(repo))
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    uses = [e["data"] for e in events if e["kind"] == "tool_use"]
    assert [use["name"] for use in uses] == ["write_file", "replace"]
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
    # The CLI does not tell that its answer was cut off by the limit of tokens.
    "maxtok": ("completed", ""),
    "401": ("failed", "auth_rejected"),
    "403": ("failed", "auth_rejected"),
    "badkey": ("failed", "auth_rejected"),
    "404": ("failed", "cli_failed"),
    "busy": ("failed", "rate_limited"),
    "500": ("failed", "provider_unavailable"),
    "503": ("failed", "provider_unavailable"),
    "cut": ("failed", "provider_unavailable"),
    "torn": ("failed", "provider_unavailable"),
    "broken": ("failed", "provider_unavailable"),
}


async def test_every_scenario_ends_as_it_should(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", runs={"max_concurrent": 6}) as service:
        runs = {name: await service.submit(f"scenario: {name}") for name in SCENARIOS}
        seen: dict[str, tuple[str, str]] = {}
        for name, run in runs.items():
            record = await service.finished(run["run_id"], seconds=240)
            seen[name] = (record["outcome"], (record["error"] or {}).get("reason", ""))
        assert seen == SCENARIOS
        events = {name: await service.all_events(run["run_id"]) for name, run in runs.items()}
        for name in ("shell", "fail"):
            assert [e["data"]["is_error"] for e in events[name] if e["kind"] == "tool_result"] == [False], name
        assert [e["data"]["is_error"] for e in events["badtool"] if e["kind"] == "tool_result"] == [True]
        assert len([e for e in events["tools2"] if e["kind"] == "tool_result"]) == 2
        huge = "".join(e["data"]["text"] for e in events["huge"] if e["kind"] == "message_delta")
        assert huge.count("\n") >= 40_000 - 1
        for name in ("busy", "500", "503"):
            asked = [request for request in provider.requests if request.scenario == name]
            assert len(asked) == 3, f"{name}: the CLI tries again, and not for ever"
        for run in runs.values():
            await assert_nothing_left(service, run["run_id"])


async def test_a_big_tool_output_comes_whole_every_time(service: LiveService) -> None:
    """On a pipe the CLI would lose the end of it in most of its runs."""
    runs = [await service.submit("scenario: dump\nRUN: seq 1 60000") for _ in range(5)]
    for run in runs:
        record = await service.finished(run["run_id"], seconds=240)
        assert record["outcome"] == "completed", record["error"]
        events = await service.all_events(run["run_id"])
        [result] = [e["data"]["content"] for e in events if e["kind"] == "tool_result"]
        assert result.split() == [str(number) for number in range(1, 60001)]
        assert "status:unparsed" not in shape(events)


async def test_a_following_run_remembers(service: LiveService) -> None:
    first = await service.submit("My name is Ada.\nscenario: remember")
    await service.finished(first["run_id"])
    second = await service.submit("What is my name?\nscenario: remember", subagent_id=first["subagent_id"])
    record = await service.finished(second["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "prompt number 2" in record["final_text"]
    assert "Ada" in record["final_text"]
    sessions = [
        (await service.until(run["run_id"], "session_started"))["data"]["session_id"] for run in (first, second)
    ]
    assert sessions[0] == sessions[1]


async def test_a_session_that_the_cli_has_lost_is_a_clear_error(service: LiveService) -> None:
    first = await service.submit("Hello.")
    await service.finished(first["run_id"])
    home = service.state / "subagents" / first["subagent_id"] / "home"
    transcripts = list(home.rglob("session-*.jsonl"))
    assert transcripts
    for transcript in transcripts:
        transcript.unlink()
    second = await service.submit("Go on.", subagent_id=first["subagent_id"])
    record = await service.finished(second["run_id"])
    assert record["error"]["reason"] == "resume_failed"


async def test_a_wrong_key_is_refused_by_the_provider(tmp_path: Path, provider: ScriptedProvider) -> None:
    config = {"api_key": "a-wrong-key"}
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", backend=config) as service:
        run = await service.submit("Hello.")
        assert (await service.finished(run["run_id"]))["error"]["reason"] == "auth_rejected"


async def test_cancel_in_the_middle_of_a_tool_leaves_no_process(service: LiveService) -> None:
    marker = "sleep 4343"
    run = await service.submit(f"scenario: dump\nRUN: (setsid sh -c 'trap \"\" INT TERM HUP; {marker}' &) ; {marker}")
    await service.until(run["run_id"], "tool_use")
    await eventually(lambda: processes_with("4343") != [])
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "cancelled"
    await eventually(lambda: processes_with("4343") == [])
    await assert_nothing_left(service, run["run_id"])


async def test_cancel_in_the_middle_of_an_answer(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit("scenario: gate")
    told = await service.until(run["run_id"], "message_delta")
    assert told["data"]["text"]
    await provider.reached("gate")
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await service.finished(run["run_id"])
    assert (record["outcome"], record["error"]["reason"]) == ("cancelled", "cancelled")
    await assert_nothing_left(service, run["run_id"])


async def test_the_wall_clock_ends_a_run(service: LiveService) -> None:
    run = await service.submit("scenario: hang", limits={"wall_clock_seconds": 8})
    record = await service.finished(run["run_id"], seconds=60)
    assert record["error"]["reason"] == "timeout"
    await assert_nothing_left(service, run["run_id"])


SEARCH = """scenario: dump
RUN:
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
find /home/agent /tmp /run/podmentor /workspace /etc/podmentor -type f -exec cat {} + 2>/dev/null | head -c 200000
ls -la /home/agent
stat -c '%U %a %n' /etc/podmentor /etc/podmentor/gemini.json /usr/local/bin/gemini
for path in /v1beta/models /v1beta/files /v1beta/models/x:generateContent; do
  curl -sS -m 10 -i -X POST -H "x-goog-api-key: $TOKEN" -d '{}' "http://127.0.0.1:8080$path"
done
"""


async def test_the_key_is_nowhere_to_be_found_and_the_settings_are_roots(
    service: LiveService, provider: ScriptedProvider
) -> None:
    run = await service.submit(SEARCH)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    text = record["final_text"]
    assert "GEMINI_API_KEY=" in text, "the search itself must have worked"
    assert "root 644 /etc/podmentor/gemini.json" in text
    assert ".podmentor-stdout" not in text, "the file that the output goes through has no name"
    assert {request.key for request in provider.requests} == {REAL_KEY}
    assert REAL_KEY not in json.dumps(await service.all_events(run["run_id"]))
    assert processes_with(REAL_KEY) == []
    for path in [p for root in (service.state, service.runtime) for p in root.rglob("*") if p.is_file()]:
        assert REAL_KEY.encode() not in path.read_bytes(), path
    assert REAL_KEY not in service.output.read_text()


async def test_c9_the_plain_mode_goes_on_by_a_recap(tmp_path: Path, provider: ScriptedProvider) -> None:
    config = {"oneshot": True}
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", backend=config) as service:
        first = await service.submit("My name is Ada.\nscenario: remember")
        record = await service.finished(first["run_id"])
        assert record["outcome"] == "completed", record["error"]
        assert record["final_text"] == "This is prompt number 1. The first was: My name is Ada."
        assert shape(await service.all_events(first["run_id"])) == [
            "status:queued", "status:starting", "status:running", "message_delta", "completed",
        ]  # fmt: skip
        second = await service.submit("What is my name?\nscenario: remember", subagent_id=first["subagent_id"])
        record = await service.finished(second["run_id"])
        assert record["outcome"] == "completed", record["error"]
        assert "prompt number 1." in record["final_text"], "the CLI itself knows of one prompt only"
        assert record["final_text"].count("What is my name?") == 1, "and has it once, not from stdin as well"
        assert "Ada" in record["final_text"]
        refused = await service.submit("scenario: 401")
        assert (await service.finished(refused["run_id"]))["error"]["reason"] == "auth_rejected"


WATCH = """import fs from"fs";import net from"net";import dns from"dns";import dgram from"dgram"
const note=(...w)=>fs.appendFileSync("/home/agent/contacts",JSON.stringify(w)+"\\n")
const wrap=(o,n,f)=>{const was=o[n];o[n]=function(...a){note(n,f(a));return was.apply(this,a)}}
wrap(net.Socket.prototype,"connect",a=>{const o=Array.isArray(a[0])?a[0][0]:a[0];return[o.host,o.port,o.path]})
for(const n of["lookup","resolve","resolve4","resolve6"])wrap(dns,n,a=>a[0])
wrap(dns.promises,"lookup",a=>a[0]);wrap(dgram.Socket.prototype,"send",a=>a.slice(1,5))"""


async def test_no_host_is_contacted_but_the_gateway(tmp_path: Path, provider: ScriptedProvider) -> None:
    """Seen from inside the CLI's own process: every connection and every name that it asks for."""
    config = {"extra_env": {"NODE_OPTIONS": f"--import=data:text/javascript,{quote(WATCH)}"}}
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", backend=config) as service:
        run = await service.submit("scenario: edit")
        assert (await service.finished(run["run_id"]))["outcome"] == "completed"
        home = service.state / "subagents" / run["subagent_id"] / "home"
        contacts = [json.loads(line) for line in (home / "contacts").read_text().splitlines()]
    assert ["connect", ["127.0.0.1", "8080", None]] in contacts or ["connect", ["127.0.0.1", 8080, None]] in contacts
    others = [contact for contact in contacts if not {"127.0.0.1", "localhost"} & {str(x) for x in flat(contact)}]
    assert others == []


def flat(value: Any) -> list[Any]:
    """The leaves of nested lists."""
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]


def test_the_image_holds_the_cli_once_and_no_installer() -> None:
    look = "command -v npm; gemini --version; ls /opt/gemini/node_modules/@google/gemini-cli/bundle/gemini-*.js | wc -l"
    done = run_to_end(container("localhost/podmentor/gemini:current", "sh", "-c", look))
    assert done.stdout.split() == ["0.61.0", "1"], done.stderr
