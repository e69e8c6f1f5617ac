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
from tests.podman.live import PROJECT, REAL_KEY, LiveService, eventually, live_service, podman

pytestmark = pytest.mark.podman

LOGIN_TOKEN = REAL_KEY
"""The provider takes one credential; here it is the one that the login brings."""
FILE = ".claude/.credentials.json"
SUBSCRIPTION = "/ui/plugins/external_agent/subscription/claude-code"


def stored_login(token: str) -> str:
    """What the CLI's own login would store."""
    login = {
        "accessToken": token,
        "refreshToken": "made-up-refresh",
        "expiresAt": 4102444800000,
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    return json.dumps({"claudeAiOauth": login})


LOGIN_SCRIPT = (
    'test -t 0 || exit 9; printf "paste the code: "; read -r code; test "$code" = right-code || exit 8; '
    f"mkdir -p $HOME/.claude && umask 077 && printf '%s' '{stored_login(LOGIN_TOKEN)}' >$HOME/{FILE}"
)
"""What a CLI's login does: asks at the terminal, and stores what the provider gives."""


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    backend = {"mode": "byo_subscription", "api_key": None, "login_command": ["sh", "-c", LOGIN_SCRIPT]}
    async with live_service(tmp_path, provider.base_url, backend=backend) as service:
        yield service


def home_of(service: LiveService, user_id: str = "local") -> Path:
    return service.state / "external_agent" / "homes" / user_id / "claude-code"


def prime(service: LiveService, user_id: str = "local", token: str = LOGIN_TOKEN) -> Path:
    home = home_of(service, user_id)
    (home / ".claude").mkdir(parents=True, exist_ok=True)
    (home / FILE).write_text(stored_login(token))
    return home


async def at_a_terminal(service: LiveService, *argv: str, typed: str, end: str = "\n") -> tuple[int, str]:
    """Run the command with a terminal; ``typed`` is sent when it asks.  Exit code and all that was shown."""
    terminal, inside = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        "--config",
        str(service.config),
        *argv,
        cwd=PROJECT,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    shown = bytearray()

    def watch() -> None:
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the other side is closed
                return
            if not piece:
                return
            if b"paste the code: " in shown + piece and b"paste the code: " not in shown:
                os.write(terminal, (typed + end).encode())
            shown.extend(piece)

    try:
        async with asyncio.timeout(120):
            await asyncio.to_thread(watch)
            return await process.wait(), shown.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(terminal)


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
    home = home_of(service)
    assert home.stat().st_mode & 0o777 == 0o700
    assert json.loads((home / FILE).read_text())["claudeAiOauth"]["accessToken"] == LOGIN_TOKEN
    assert await service.call("POST", SUBSCRIPTION + "/finished") == {
        "installed": True,
        "authenticated": True,
        "error": None,
    }
    instance = (service.state / "instance").read_text().strip()
    assert await podman("ps", "-a", f"--filter=label=podmentor.instance={instance}", "--format", "{{.ID}}") == ""
    assert [*service.runtime.glob("login-*"), *service.runtime.glob("probe-*")] == []

    run = await service.submit("Please greet me.")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert record["tier"] == 1
    asked = [request for request in provider.requests if request.path == "/v1/messages"]
    assert asked
    assert {request.headers.get("authorization") for request in asked} == {f"Bearer {LOGIN_TOKEN}"}
    assert not any("x-api-key" in request.headers for request in asked)
    for place in (service.output, service.state / "relay.log", *service.state.glob("podmentor.db*")):
        assert LOGIN_TOKEN.encode() not in place.read_bytes(), place

    account = await service.call("DELETE", SUBSCRIPTION)
    assert not account["connected"]
    assert not home.exists()
    after = await service.submit("Hello.")
    assert (await service.finished(after["run_id"]))["error"]["reason"] == "auth_required"


async def test_two_runs_on_one_home_go_one_after_the_other(service: LiveService, provider: ScriptedProvider) -> None:
    prime(service)
    first = await service.submit("scenario: dump\nRUN: until test -e $HOME/go; do sleep 0.1; done")
    await service.until(first["run_id"], "tool_use")
    second = await service.submit("Please greet me.")
    queued = await service.until(second["run_id"], "status", phase="queued")
    assert queued["data"] == {"phase": "queued", "position": 0, "waiting_for": "home"}
    account = (await service.call("GET", "/v1/accounts"))["accounts"][0]
    assert account["run_ids"] == [first["run_id"]]
    await service.kill()
    await service.start()  # the lease is still there
    assert (await service.call("GET", f"/v1/runs/{second['run_id']}"))["state"] == "queued"
    (home_of(service) / "go").touch()
    one = await service.finished(first["run_id"])
    two = await service.finished(second["run_id"])
    assert (one["outcome"], two["outcome"]) == ("completed", "completed"), (one["error"], two["error"])
    assert two["started_at"] >= one["finished_at"]


async def test_a_login_is_left_with_ctrl_c_whatever_the_cli_makes_of_it(
    tmp_path: Path, provider: ScriptedProvider
) -> None:
    deaf = 'trap "" INT QUIT; printf "paste the code: "; while :; do read -r code; sleep 1; done'
    backend = {"mode": "byo_subscription", "api_key": None, "login_command": ["sh", "-c", deaf]}
    async with live_service(tmp_path, provider.base_url, backend=backend) as service:
        async with asyncio.timeout(60):
            code, shown = await at_a_terminal(service, "login", "claude-code", typed="\x03", end="")
        assert code == 4, shown
        assert "not connected" in shown
        instance = (service.state / "instance").read_text().strip()
        assert await podman("ps", "-a", f"--filter=label=podmentor.instance={instance}", "--format", "{{.ID}}") == ""
        assert [*service.runtime.glob("login-*"), *service.runtime.glob("probe-*")] == []


async def test_a_login_that_the_run_broke_is_put_back_and_links_are_not_followed(
    service: LiveService, tmp_path: Path
) -> None:
    """A hostile agent: looks for other homes, plants links, breaks the login, and is killed."""
    secret = f"sk-ant-oat01-of-bob-{secrets.token_hex(8)}"
    bobs = prime(service, "bob", secret)
    home = prime(service)
    good = (home / FILE).read_text()
    look = (
        f"ls -d {bobs} {home.parent.parent} /home/* 2>&1; grep -rIl --exclude-dir=proc --exclude-dir=sys -e of-bob / "
        "2>/dev/null; cat /proc/self/mountinfo | grep -c homes/bob; "
        f"ln -s {bobs} $HOME/bobs; rm -f $HOME/{FILE}; ln -s {bobs / FILE} $HOME/{FILE}; echo planted; sleep 4000"
    )
    run = await service.submit(f"scenario: dump\nRUN: {look}")
    await eventually(lambda: (home / FILE).is_symlink(), seconds=90)
    assert (await service.call("POST", SUBSCRIPTION + "/finished"))["authenticated"] is False
    account = await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "cancelled", account
    assert not (home / FILE).is_symlink()
    assert (home / FILE).read_text() == good
    assert (home / "bobs").is_symlink()
    log = await service.call("GET", f"/v1/runs/{run['run_id']}")
    assert secret not in json.dumps(log)

    seen = await service.submit("scenario: dump\nRUN: ls -A /home/agent/bobs/ 2>&1; cat $HOME/bobs/" + FILE)
    record = await service.finished(seen["run_id"])
    assert secret not in json.dumps(await service.all_events(seen["run_id"]))
    assert "No such file" in record["final_text"]

    await service.call("DELETE", SUBSCRIPTION)
    assert not home.exists()
    assert (bobs / FILE).read_text() == stored_login(secret)


async def test_a_run_sees_no_home_but_its_own(service: LiveService) -> None:
    secret = f"sk-ant-oat01-of-bob-{secrets.token_hex(8)}"
    prime(service, "bob", secret)
    prime(service)
    look = (
        f"ls {home_of(service, 'bob')} {service.state} 2>&1; "
        f"grep -rIls -e of-bob /home /workspace /run /tmp /etc /var /root /opt /srv; "
        "grep -c /homes/bob/ /proc/self/mountinfo; grep -c /homes/local/ /proc/self/mountinfo"
    )
    run = await service.submit(f"scenario: dump\nRUN: {look}")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    lines: list[str] = [line.strip() for line in record["final_text"].splitlines()]
    assert sum("No such file" in line for line in lines) == 2, lines
    assert secret not in json.dumps(await service.all_events(run["run_id"]))
    assert lines[-2:] == ["0", "1"], lines


async def test_a_refused_login_says_how_to_log_in_again(service: LiveService) -> None:
    prime(service, token="sk-ant-oat01-refused")
    run = await service.submit("Hello.")
    record = await service.finished(run["run_id"])
    assert record["error"]["reason"] == "auth_rejected"
    assert "podmentor login claude-code" in record["error"]["message"]
    exhausted: dict[str, Any] = {}
    prime(service)
    run = await service.submit("scenario: credit")
    exhausted = (await service.finished(run["run_id"]))["error"]
    assert exhausted["reason"] == "credit_exhausted"
    assert "account" in exhausted["message"]


async def test_key_modes_have_a_home_per_subagent(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with live_service(tmp_path, provider.base_url) as service:
        write = "scenario: dump\nRUN: ls $HOME/mine 2>&1; touch $HOME/mine"
        for _ in range(2):
            record = await service.finished((await service.submit(write))["run_id"])
            assert "No such file" in record["final_text"], record
        assert not home_of(service).exists()
