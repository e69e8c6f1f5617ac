"""kill -9, restarts, floods: the events are what they would have been anyway."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import LiveService, assert_nothing_left, eventually, live_service, podman, processes_with
from tests.podman.soak.eyes import Eyes

pytestmark = pytest.mark.podman

VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?:msg|toolu|req)_\w+|\"duration_ms\": \d+"
)


def essence(event: dict[str, Any]) -> tuple[int, str, str, str]:
    """What must be equal in two runs of the same script: everything but ids that CLI and provider draw, and times."""
    data = json.dumps(event["data"], sort_keys=True)
    return event["seq"], event["kind"], event["source"], VOLATILE.sub("*", data)


async def undisturbed(root: Path, provider: ScriptedProvider, query: str) -> list[tuple[int, str, str, str]]:
    async with live_service(root, provider.base_url) as service:
        run = await service.submit(query)
        await service.finished(run["run_id"])
        return [essence(event) for event in await service.all_events(run["run_id"])]


async def test_kill_9_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """At every pause of the answer the service is killed and started again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with ScriptedProvider(scenario="slow") as provider:
        await provider.release("slow")
        expected = await undisturbed(tmp_path / "a", provider, "Go.")
        await provider.hold("slow")
        async with live_service(tmp_path / "b", provider.base_url) as service:
            run = await service.submit("Go.")
            for sentence in range(1, 6):
                await provider.reached("slow", timeout=60)
                await service.kill()
                await provider.release("slow", times=1)  # the answer goes on while no service lives
                await service.start()
                await service.until(run["run_id"], "message_delta", text=f"Sentence {sentence} of 5. ")
            record = await service.finished(run["run_id"])
            assert record["outcome"] == "completed", record["error"]
            got = [essence(event) for event in await service.all_events(run["run_id"])]
            lost = [event for event in expected if event not in got]
            doubled = [event for event in got if got.count(event) > 1]
            print(f"crash test: {len(got)} events over 5 kills, {len(lost)} lost, {len(doubled)} doubled")
            assert got == expected
            await assert_nothing_left(service, run["run_id"])


async def test_a_service_killed_for_good_is_swept_by_the_next(tmp_path: Path) -> None:
    async with ScriptedProvider(scenario="hang") as provider, live_service(tmp_path, provider.base_url) as service:
        run = await service.submit("Go.")
        await provider.reached("hang", timeout=60)
        await service.kill()
        assert run["run_id"] in await podman("ps", "--format", "{{.Labels}}")
        await service.start()
        await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
        assert (await service.finished(run["run_id"]))["outcome"] == "cancelled"
        await assert_nothing_left(service, run["run_id"])


async def test_sigterm_leaves_the_container_for_the_next_service(tmp_path: Path) -> None:
    async with ScriptedProvider(scenario="gate") as provider, live_service(tmp_path, provider.base_url) as service:
        run = await service.submit("Go.")
        await provider.reached("gate", timeout=60)
        assert await service.terminate() == 0
        assert run["run_id"] in await podman("ps", "--format", "{{.Labels}}")
        await provider.release("gate")
        await service.start()
        record = await service.finished(run["run_id"])
        assert record["outcome"] == "completed", record["error"]
        assert record["final_text"] == "Before the gate. Behind the gate."
        events = await service.all_events(run["run_id"])
        assert not [event for event in events if event["data"].get("phase") == "retrying"], "the stream was never cut"


FAKE_CLI = r"""#!/usr/bin/python3
import json, sys
out = sys.stdout.buffer
def line(**obj):
    out.write(json.dumps(obj).encode() + b"\n")
line(type="system", subtype="init", session_id="11111111-1111-4111-8111-111111111111", model="m", tools=[], mcp_servers=[])
BODY
out.flush()
"""
RESULT = (
    'out.write(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "done",'
    ' "duration_ms": 1, "num_turns": 1, "usage": {"input_tokens": 1, "output_tokens": 1}}).encode())'
)
"""Without a newline at the end."""


async def fake_cli_run(service: LiveService, repo: Path, body: str, **limits: Any) -> tuple[dict[str, Any], list[Any]]:
    """A run whose CLI is a script in the workspace; it prints what ``body`` says."""
    cli = repo / "cli"
    cli.write_text(FAKE_CLI.replace("BODY", f"{body}\n{RESULT}"))
    cli.chmod(0o755)
    run = await service.submit("x", repo=str(repo), limits=limits)
    record = await service.finished(run["run_id"], seconds=300)
    return record, await service.all_events(run["run_id"])


def resident_kib(pid: int) -> int:
    """Highest resident size so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


async def test_hostile_output_survives_in_bounded_memory(tmp_path: Path, repo: Path) -> None:
    async with (
        ScriptedProvider() as provider,
        live_service(tmp_path, provider.base_url, backend={"binary": "/workspace/cli"}) as service,
    ):
        before = resident_kib(service.pid)
        size = 64 * 1024 * 1024
        tool = '{"type":"tool_use","id":"t1","name":"Bash","input":{}}'
        record, events = await fake_cli_run(
            service,
            repo,
            f"""
out.write(b'{{"type":"assistant","message":{{"id":"m1","content":[{tool}]}}}}\\n')
out.write(b'{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"t1","content":"')
for _ in range({size} // 65536): out.write(b"y" * 65536)
out.write(b'"}}]}}}}\\n')
""",
        )
        assert record["outcome"] == "completed", record["error"]
        [result] = [e["data"] for e in events if e["kind"] == "tool_result"]
        assert result["content"].endswith(f"[cut: {size - 1024 * 1024} bytes, the whole is in the run's log]")
        log = service.state / "runs" / record["run_id"] / "ctr.log"
        assert log.stat().st_size > size

        record, events = await fake_cli_run(
            service,
            repo,
            """
out.write(b"\\xff\\xfe not utf-8\\n")
out.write(b"no json\\n")
for i in range(50):
    line(type="assistant", message={"id": f"m{i}", "content": [{"type": "text", "text": f"t{i} "}]}); out.flush()
    print("warning", i, file=sys.stderr, flush=True)
""",
        )
        assert record["outcome"] == "completed", record["error"]
        phases = [e["data"].get("phase") for e in events if e["kind"] == "status"]
        assert phases.count("unparsed") == 2
        assert phases.count("diagnostic") == 50
        assert [e["data"]["text"] for e in events if e["kind"] == "message_delta"] == [f"t{i} " for i in range(50)]

        record, events = await fake_cli_run(
            service,
            repo,
            """
for i in range(200_000):
    line(type="assistant", message={"id": f"m{i}", "content": [{"type": "text", "text": f"{i} "}]})
""",
        )
        assert record["outcome"] == "completed", record["error"]
        assert record["last_seq"] == len(events)
        texts = [e["data"]["text"] for e in events if e["kind"] == "message_delta"]
        assert texts == [f"{i} " for i in range(200_000)]
        grown = resident_kib(service.pid) - before
        print(f"service grew by {grown // 1024} MiB at most")
        assert grown < 200 * 1024


async def test_ending_of_a_cli_that_dies(tmp_path: Path, repo: Path) -> None:
    async with (
        ScriptedProvider() as provider,
        live_service(tmp_path, provider.base_url, backend={"binary": "/workspace/cli"}) as service,
    ):
        record, _ = await fake_cli_run(
            service, repo, 'out.flush(); print("the cause", file=sys.stderr); sys.stderr.flush(); import os; os.abort()'
        )
        assert record["outcome"] == "failed"
        assert record["error"]["reason"] == "cli_failed"
        assert "the cause" in json.dumps(record["error"])
        assert record["exit_code"] == 128 + 6
        record, _ = await fake_cli_run(service, repo, "out.flush(); import time; time.sleep(600)", idle_seconds=2)
        assert record["error"]["reason"] == "idle_timeout"
        record, _ = await fake_cli_run(
            service, repo, "while True: out.write(b'z' * 1000 + b'\\n')", output_max_bytes=5_000_000
        )
        assert record["error"]["reason"] == "output_exceeded"
        for run in (await service.call("GET", "/v1/runs"))["runs"]:
            await assert_nothing_left(service, run["run_id"])


DEAF_FAMILY = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.close(1); os.close(2)
out.flush()
while True: time.sleep(60)
"""


async def deaf_run(service: LiveService, repo: Path, **limits: Any) -> str:
    """A run whose processes ignore signals and have forked away, once it has begun."""
    cli = repo / "cli"
    cli.write_text(FAKE_CLI.replace("BODY", DEAF_FAMILY))
    cli.chmod(0o755)
    run = await service.submit("x", repo=str(repo), limits=limits)
    await service.until(run["run_id"], "session_started")
    return str(run["run_id"])


async def test_a_deadline_that_passes_while_no_service_lives(tmp_path: Path, repo: Path) -> None:
    async with (
        ScriptedProvider() as provider,
        live_service(tmp_path, provider.base_url, backend={"binary": "/workspace/cli"}) as service,
    ):
        eyes = Eyes(service.runtime)
        run_id = await deaf_run(service, repo, wall_clock_seconds=10)
        assert len((await eyes.look())[run_id]) >= 3
        await service.kill()
        await eventually(lambda: run_id not in eyes.scan(), seconds=60)
        await service.start()
        record = await service.finished(run_id)
        assert record["error"]["reason"] == "timeout"
        await assert_nothing_left(service, run_id)


async def test_a_cancel_needs_no_podman(tmp_path: Path, repo: Path) -> None:
    """Podman's service is stopped, as one that hangs: the processes die all the same, and the rest follows."""
    async with (
        ScriptedProvider() as provider,
        live_service(tmp_path, provider.base_url, backend={"binary": "/workspace/cli"}) as service,
    ):
        eyes = Eyes(service.runtime)
        run_id = await deaf_run(service, repo)
        [hung] = processes_with(f"unix://{service.runtime}/podman.sock")
        os.kill(hung, signal.SIGSTOP)
        await service.call("POST", f"/v1/runs/{run_id}/cancel")
        await eventually(lambda: run_id not in eyes.scan(), seconds=60)
        assert (await service.finished(run_id))["outcome"] == "cancelled"
        await assert_nothing_left(service, run_id)
        assert not Path(f"/proc/{hung}").exists()
