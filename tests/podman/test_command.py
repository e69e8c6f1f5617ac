"""The command as a person runs it, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import PROJECT, LiveService, live_service, podman

pytestmark = pytest.mark.podman


async def command(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        *argv,
        cwd=PROJECT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), 100)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_demo_proves_itself(tmp_path: Path) -> None:
    code, out, err = await command("--state", str(tmp_path / "state"), "demo", "--json")
    report = json.loads(out)
    assert code == 0, err
    assert all(check["ok"] for check in report["checks"])
    assert len(report["checks"]) >= 3


async def test_doctor_finds_nothing_failed(tmp_path: Path) -> None:
    code, out, _ = await command("--state", str(tmp_path / "state"), "doctor", "--json")
    findings = json.loads(out)
    assert code == 0, [finding for finding in findings if finding["status"] == "failed"]


async def test_run_is_its_own_service_when_there_is_none(tmp_path: Path, provider: ScriptedProvider) -> None:
    service = LiveService(tmp_path, provider.base_url)
    code, out, err = await command(
        "--config", str(service.config), "run", "claude-code", "-", "--no-repo", "--json", stdin=b"scenario: shell"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0, err
    assert [line["seq"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert lines[-1]["kind"] == "result"
    assert lines[-1]["outcome"] == "completed"
    assert list(service.runtime.glob("*.sock")) == [], "no service is left"
    await podman("unshare", "rm", "-rf", "--", str(service.state), str(service.runtime))


async def test_run_survives_the_service_that_it_uses(tmp_path: Path) -> None:
    """kill -9 of the service in the middle: the command becomes the service, takes the run over and shows its end."""
    async with ScriptedProvider(scenario="gate") as provider, live_service(tmp_path, provider.base_url) as service:
        running = asyncio.ensure_future(
            command("--config", str(service.config), "run", "claude-code", "Go.", "--no-repo", "--json")
        )
        await provider.reached("gate", timeout=60)
        await service.kill()
        await provider.release("gate")
        code, out, err = await running
        lines = [json.loads(line) for line in out.splitlines()]
        assert code == 0, err
        assert [line["seq"] for line in lines[:-1]] == list(range(1, len(lines)))
        assert lines[-2]["data"]["final_text"] == "Before the gate. Behind the gate."


async def test_no_run_is_left_to_a_service_that_ends_with_another_command(tmp_path: Path) -> None:
    async with ScriptedProvider(scenario="gate") as provider:
        service = LiveService(tmp_path, provider.base_url)
        argv = ("--config", str(service.config), "run", "claude-code", "Go.", "--no-repo")
        running = asyncio.ensure_future(command(*argv))
        await provider.reached("gate", timeout=60)
        code, out, err = await command(*argv, "--detach")
        assert (code, out) == (3, "")
        assert "inside another podmentor command" in err
        await provider.release("gate")
        assert (await running)[0] == 0
    await podman("unshare", "rm", "-rf", "--", str(service.state), str(service.runtime))


async def test_ctrl_c_cancels_and_waits_for_the_end(tmp_path: Path) -> None:
    async with ScriptedProvider(scenario="hang") as provider, live_service(tmp_path, provider.base_url) as service:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator",
            "--config",
            str(service.config),
            "run",
            "claude-code",
            "Go.",
            "--no-repo",
            cwd=PROJECT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await provider.reached("hang", timeout=60)
        os.kill(process.pid, signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 130, out.decode()
        [run] = (await service.call("GET", "/v1/runs"))["runs"]
        assert run["outcome"] == "cancelled"


async def test_a_second_service_is_refused(service: LiveService) -> None:
    code, _, err = await command("--config", str(service.config), "serve")
    assert code != 0
    assert str(service.pid) in err
