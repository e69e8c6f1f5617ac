"""A user's own subscription with the real Claude Code CLI: a scripted login at a terminal, and runs that use it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import PROJECT, REAL_KEY, LiveService, live_service, podman

pytestmark = pytest.mark.podman

LOGIN_TOKEN = REAL_KEY  # the provider knows one credential; here it is the one that the login brings
FILE = ".claude/.credentials.json"


def login_script(token: str) -> list[str]:
    """What a CLI's login does: asks at the terminal, and stores what the provider gives."""
    stored = {
        "claudeAiOauth": {
            "accessToken": token, "refreshToken": "made-up-refresh", "expiresAt": 4102444800000,
            "scopes": ["user:inference", "user:profile"], "subscriptionType": "max",
        }
    }  # fmt: skip
    script = (
        'test -t 0 || exit 9; printf "paste the code: "; read -r code; test "$code" = right-code || exit 8; '
        f"mkdir -p $HOME/.claude && umask 077 && printf '%s' '{json.dumps(stored)}' >$HOME/{FILE}"
    )
    return ["sh", "-c", script]


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    backend = {"mode": "byo_subscription", "api_key": None, "login_command": login_script(LOGIN_TOKEN)}
    async with live_service(tmp_path, provider.base_url, backend=backend) as service:
        yield service


async def at_a_terminal(service: LiveService, *argv: str, typed: str) -> tuple[int, str]:
    """Run the command with a terminal; ``typed`` is sent when it asks.  Exit code and all that was shown."""
    terminal, inside = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "orchestrator", "--config", str(service.config), *argv,
        cwd=PROJECT, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
    )  # fmt: skip
    os.close(inside)
    shown = bytearray()
    sent = False
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(terminal, "r+b", buffering=0))
    try:
        async with asyncio.timeout(120):
            while True:
                try:
                    piece = await reader.read(4096)
                except OSError:  # the other side is closed
                    break
                if not piece:
                    break
                shown += piece
                if not sent and b"paste the code: " in shown:
                    sent = True
                    await asyncio.to_thread(os.write, terminal, typed.encode() + b"\n")
            return await process.wait(), shown.decode()
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_login_at_the_terminal_primes_the_home_and_runs_use_it(
    service: LiveService, provider: ScriptedProvider
) -> None:
    before = await service.submit("Hello.")
    assert (await service.finished(before["run_id"]))["error"]["reason"] == "auth_required"

    code, shown = await at_a_terminal(service, "login", "claude-code", typed="wrong-code")
    assert code == 4, shown
    assert "not connected" in shown

    code, shown = await at_a_terminal(service, "login", "claude-code", typed="right-code")
    assert code == 0, shown
    assert "Connected" in shown
    home = service.state / "external_agent" / "homes" / "local" / "claude-code"
    assert home.stat().st_mode & 0o777 == 0o700
    assert json.loads((home / FILE).read_text())["claudeAiOauth"]["accessToken"] == LOGIN_TOKEN

    run = await service.submit("Please greet me.")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert record["tier"] == 1
    asked = [request for request in provider.requests if request.path == "/v1/messages"]
    assert asked
    assert {request.headers.get("authorization") for request in asked} == {f"Bearer {LOGIN_TOKEN}"}
    assert not any("x-api-key" in request.headers for request in asked)
