"""podmentor keys, podmentor auth explain: without a service, and with one elsewhere."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.process import ROOT
from tests.orchestrator.vault.kit import SECRET, raw_bytes


@pytest.fixture
def vault(invoke: Invoke) -> None:
    """A vault in the state directory."""
    assert invoke("vault", "init").exit_code == 0


@pytest.mark.usefixtures("vault")
def test_set_list_delete(invoke: Invoke, place: Path) -> None:
    made = invoke("keys", "set", "claude-code", stdin=f"  {SECRET}\n")
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("stored for local: claude-code ")
    listed = json.loads(invoke("keys", "list", "--json").stdout)["keys"]
    assert [(one["user_id"], one["backend"], one["last_used_at"]) for one in listed] == [("local", "claude-code", None)]
    assert listed[0]["fingerprint"] in made.stdout
    assert listed[0]["fingerprint"] in invoke("keys", "list").stdout
    assert SECRET.encode() not in raw_bytes(place)
    assert invoke("keys", "delete", "claude-code").exit_code == 0
    assert invoke("keys", "delete", "claude-code").exit_code == 5
    assert json.loads(invoke("keys", "list", "--json").stdout) == {"keys": []}


@pytest.mark.usefixtures("vault")
def test_keys_belong_to_their_users(invoke: Invoke) -> None:
    invoke("keys", "set", "claude-code", "--user", "alice", stdin=SECRET)
    assert json.loads(invoke("keys", "list", "--user", "bob", "--json").stdout) == {"keys": []}
    assert len(json.loads(invoke("keys", "list", "--all", "--json").stdout)["keys"]) == 1
    alice, bob = (invoke("auth", "explain", "--user", user, "claude-code", "--json") for user in ("alice", "bob"))
    chosen = [
        next(one["source"] for one in json.loads(found.stdout)["sources"] if one["chosen"]) for found in (alice, bob)
    ]
    assert chosen == ["byo_key", "technical_user"]
    assert "→ byo_key" in invoke("auth", "explain", "--user", "alice", "claude-code").stdout


@pytest.mark.usefixtures("vault")
@pytest.mark.parametrize(
    ("args", "stdin", "code"),
    [
        (("claude-code",), "", 2),
        (("claude-code",), "two words-of-text", 2),
        (("claude-code", SECRET), "", 2),
        (("claude-code", "--user", "../x"), SECRET, 2),
        (("claude-code", "--user", "_config"), SECRET, 2),
        (("nothing",), SECRET, 5),
    ],
)
def test_what_is_refused(invoke: Invoke, args: tuple[str, ...], stdin: str, code: int) -> None:
    found = invoke("keys", "set", *args, stdin=stdin)
    assert found.exit_code == code
    assert stdin not in found.output or not stdin


def test_without_a_vault_the_way_to_one_is_shown(invoke: Invoke) -> None:
    for args in (("keys", "set", "claude-code"), ("keys", "list"), ("keys", "delete", "claude-code")):
        found = invoke(*args, stdin=SECRET)
        assert (found.exit_code, "podmentor vault init" in found.output) == (3, True)
        assert "[vault_unavailable]" in found.output
    assert invoke("auth", "explain", "claude-code").exit_code == 0  # the technical user's key is there


def test_nothing_found_is_exit_code_4(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    found = invoke("auth", "explain", "claude-code")
    assert found.exit_code == 4
    assert "podmentor vault init" in found.output
    assert invoke("auth", "explain", "nothing").exit_code == 5


async def test_the_prompt_does_not_show_what_is_typed(invoke: Invoke, vault: None, paths: Paths) -> None:
    terminal, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator",
            "keys",
            "set",
            "claude-code",
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        os.close(theirs)
        seen = ""

        async def until(text: str) -> str:
            nonlocal seen
            async with asyncio.timeout(30):
                while text not in seen:
                    seen += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
            return seen

        await until("Key for claude-code: ")
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        os.write(terminal, f"{SECRET}\n".encode())
        await until("stored for local: claude-code")
        with contextlib.suppress(OSError):  # the terminal ends with its process
            seen += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        os.close(terminal)
    assert SECRET not in seen
    assert SECRET.encode() not in arguments
    listed = await asyncio.to_thread(invoke, "keys", "list", "--json")
    assert len(json.loads(listed.stdout)["keys"]) == 1
