"""What only the Gemini CLI has, in its real container; the scenes of all backends are in test_backends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.scripted import ScriptedProvider
from tests.podman.images_kit import container, run_to_end
from tests.podman.live import REAL_KEY, LiveService, assert_nothing_left, live_service, processes_with
from tests.podman.shared import MARKS
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import module_service as module_service  # noqa: PLC0414
from tests.podman.shared import provider as provider  # noqa: PLC0414
from tests.podman.shared import service as service  # noqa: PLC0414

pytestmark = MARKS
BACKEND = "gemini"


def shape(events: list[dict[str, Any]]) -> list[str]:
    """Kinds with phases, repetitions folded; what the CLI says on stderr left out."""
    names = [f"status:{e['data']['phase']}" if e["kind"] == "status" else e["kind"] for e in events]
    names = [name for name in names if name != "status:diagnostic"]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


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


async def test_a_wrong_key_is_refused_by_the_provider(tmp_path: Path, provider: ScriptedProvider) -> None:
    config = {"api_key": "a-wrong-key"}
    async with live_service(tmp_path, provider.base_url, backend_name="gemini", backend=config) as service:
        run = await service.submit("Hello.")
        assert (await service.finished(run["run_id"]))["error"]["reason"] == "auth_rejected"


async def test_cancel_in_the_middle_of_an_answer(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit("scenario: gate")
    reported = await service.until(run["run_id"], "message_delta")
    assert reported["data"]["text"]
    await provider.reached("gate")
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await service.finished(run["run_id"])
    assert (record["outcome"], record["error"]["reason"]) == ("cancelled", "cancelled")
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
            "status:queued",
            "status:starting",
            "status:running",
            "message_delta",
            "completed",
        ]
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


async def test_the_image_holds_the_cli_once_and_no_installer() -> None:
    look = "command -v npm; gemini --version; ls /opt/gemini/node_modules/@google/gemini-cli/bundle/gemini-*.js | wc -l"
    done = await asyncio.to_thread(run_to_end, container("localhost/podmentor/gemini:current", "sh", "-c", look))
    assert done.stdout.split() == ["0.61.0", "1"], done.stderr
