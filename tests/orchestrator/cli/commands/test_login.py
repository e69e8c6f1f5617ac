"""podmentor login, logout and accounts, up to the terminal (which the tests with containers have)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import click
import pytest

from orchestrator.cli.commands.login import login
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import CliError
from tests.fakes.api_server import FakeApi, ThreadedApi
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.process import ROOT

ONE = "/ui/plugins/external_agent/subscription/claude-code"


class Sandbox:
    """Stands in for the container with the login: another command at the same terminal."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.asked: list[tuple[str, str]] = []
        self.removed = 0

    def module(self) -> ModuleType:
        module = ModuleType("orchestrator.bootstrap.login")
        module.login_sandbox = self.open  # type: ignore[attr-defined]
        return module

    @asynccontextmanager
    async def open(self, *_: Any, user_id: str, backend: str, actor: str) -> AsyncIterator[Any]:
        assert actor.startswith("command:uid ")
        self.asked.append((user_id, backend))
        try:
            yield self.argv, {}
        finally:
            self.removed += 1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.commands.login.has_terminal", lambda: True)


def call(*argv: str, user: str | None = None) -> None:
    with click.Context(login, obj=CliContext()) as context:
        context.invoke(login, backend=argv[0], user=user)


def test_a_login_is_announced_run_and_verified(
    served: ThreadedApi,
    api: FakeApi,
    terminal: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sandbox = Sandbox([sys.executable, "-c", "raise SystemExit(0)"])
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.login", sandbox.module())
    call("claude-code")
    said = capsys.readouterr().err
    assert "The CLI's own login follows" in said
    assert "homes/local/claude-code" in said.replace("\n", "")
    assert "Connected" in said
    assert "not used" not in said
    assert sandbox.asked == [("local", "claude-code")]
    assert sandbox.removed == 1
    assert api.asked == [("POST", ONE + "/connect"), ("POST", ONE + "/finished")]
    api.account["mode"] = "technical_user"
    call("claude-code", user="alice")
    assert "byo_subscription" in capsys.readouterr().err
    assert api.asked[-1] == ("POST", ONE + "/finished?user=alice")


def test_a_login_that_did_not_come_about(
    served: ThreadedApi, api: FakeApi, terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox([sys.executable, "-c", "raise SystemExit(3)"])
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.login", sandbox.module())
    api.auth_status = {"installed": True, "authenticated": False, "error": "not logged in"}
    with pytest.raises(CliError) as caught:
        call("claude-code")
    assert caught.value.exit_code == 4
    assert "not connected: not logged in (the login ended with exit code 3)" in caught.value.message
    assert sandbox.removed == 1


@pytest.mark.parametrize("number", ["SIGHUP", "SIGTERM", "SIGINT", "SIGQUIT"])
def test_a_terminal_that_is_closed_ends_the_login_and_leaves_nothing(
    served: ThreadedApi, api: FakeApi, terminal: None, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    script = f"import os, signal; os.kill(os.getppid(), signal.{number}); signal.pause()"
    sandbox = Sandbox([sys.executable, "-c", script])
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.login", sandbox.module())
    with pytest.raises(click.exceptions.Exit) as caught:
        call("claude-code")
    assert caught.value.exit_code == 130
    assert sandbox.removed == 1
    assert api.asked == [("POST", ONE + "/connect")]


@pytest.mark.parametrize("keys", [b"\x03", b"\x1c"])
def test_a_login_is_left_by_a_key_and_the_terminal_is_as_before(served: ThreadedApi, keys: bytes) -> None:
    """The login has the terminal in a mode of its own and pays no heed to signals; it is killed."""
    program = (
        "import signal, sys, termios, tty; [signal.signal(n, signal.SIG_IGN) for n in (2, 3)]; tty.setcbreak(0);"
        " print('at work', flush=True); signal.pause()"
    )
    code = (
        "import sys, types; from contextlib import asynccontextmanager\n"
        "@asynccontextmanager\n"
        "async def opened(*_, **__):\n"
        f"    yield [sys.executable, '-c', {program!r}], {{}}\n"
        "    print('removed')\n"
        "module = types.ModuleType('orchestrator.bootstrap.login'); module.login_sandbox = opened\n"
        "sys.modules['orchestrator.bootstrap.login'] = module\n"
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys become signals for who has the terminal\n"
        "from orchestrator.cli.main import main; main()\n"
    )
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with subprocess.Popen(
        [sys.executable, "-c", code, "login", "claude-code"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        shown = b""
        while b"at work" not in shown:
            shown += os.read(master, 4096)
        os.write(master, keys)
        assert process.wait(timeout=30) == 130
        assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)


def test_no_login_while_a_run_uses_the_account(served: ThreadedApi, api: FakeApi, terminal: None) -> None:
    api.account["run_ids"] = ["run_7"]
    with pytest.raises(CliError, match="run_7"):
        call("claude-code")


def test_a_login_needs_a_terminal_on_this_machine(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    result = invoke("login", "claude-code")
    assert (result.exit_code, api.asked) == (2, [])
    assert "needs a terminal" in result.output
    result = invoke("--url", "https://podmentor.example", "login", "claude-code")
    assert result.exit_code == 2
    assert "on the machine where podmentor runs" in result.output


def test_logout_asks_first_and_waits_as_asked(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("logout", "claude-code", stdin="n\n").exit_code == 1
    assert api.asked == []
    result = invoke("logout", "claude-code", stdin="y\n")
    assert "disconnected local from claude-code" in result.output
    assert api.asked == [("DELETE", ONE + "?timeout=0")]
    api.account.update(connected=True, run_ids=["run_7"])
    assert "1 run(s) use this account now" in invoke("logout", "claude-code", "--yes").output
    result = invoke("logout", "claude-code", "--yes", "--wait", "--user", "alice")
    assert result.exit_code == 0, result.output
    assert api.asked[-2:] == [
        ("DELETE", ONE + "?user=alice&timeout=0&mode=wait"),
        ("DELETE", ONE + "?user=alice&mode=wait&timeout=30"),
    ]
    assert invoke("logout", "other", "--yes").exit_code == 5


def test_accounts_are_listed_with_what_to_do(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert "not connected" in (text := invoke("accounts", "list").output)
    assert "podmentor login claude-code" in text
    api.account["connected"] = True
    assert invoke("accounts", "list").output.splitlines()[1].split() == ["claude-code", "local", "connected"]
    api.account["mode"] = "byo_key"
    assert "set external_agent.backends.claude-code.mode to byo_subscription" in invoke("accounts", "list").output
    api.account["run_ids"] = ["r"]
    assert "in use" in invoke("accounts", "list", "--user", "bob").output
    assert api.asked[-1] == ("GET", "/v1/accounts?user=bob")
    api.account["disconnecting"] = True
    assert "being disconnected" in invoke("accounts", "list").output
    assert json.loads(invoke("accounts", "list", "--json").output) == {"accounts": [api.account]}
