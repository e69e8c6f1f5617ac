"""A user with a key of her own and one without: each run is paid with the right key, and nobody finds either.

C18, C19 with real containers: the keys are looked for in the containers, their settings, events, logs, the state
directory's raw bytes, arguments and environments of processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.tokens import TokenStore
from orchestrator.scripted import ScriptedProvider
from tests.podman.live import PROJECT, REAL_KEY, LiveService, podman, processes_with

pytestmark = pytest.mark.podman

OWN_KEY = f"sk-own-{secrets.token_hex(16)}"
LOOK_AROUND = """scenario: dump
RUN:
echo marker-{user}
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
find /home/agent /tmp /run/podmentor /workspace -type f -exec cat {{}} + 2>/dev/null | head -c 200000
"""


class Command:
    """`podmentor` on the service's state, with what it printed."""

    def __init__(self, service: LiveService) -> None:
        self._service = service

    async def __call__(self, *args: str, stdin: str = "", code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator",
            "--config",
            str(self._service.config),
            *args,
            cwd=PROJECT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert process.returncode == code, out.decode()
        assert OWN_KEY not in out.decode()
        return out.decode()


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    """One that takes every key and notes it."""
    async with ScriptedProvider() as provider:
        yield provider


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    """A service with a vault."""
    service = LiveService(tmp_path, provider.base_url)
    await Command(service)("vault", "init")
    await service.start()
    try:
        yield service
    finally:
        await service.terminate()


async def token_of(service: LiveService, user: str) -> dict[str, str]:
    async with TokenStore(service.state / "podmentor.db") as tokens:
        return {"Authorization": f"Bearer {(await tokens.create(user, 'user')).text}"}


async def run_as(service: LiveService, headers: dict[str, str], query: str) -> dict[str, Any]:
    body = {"backend": "claude-code", "query": query}
    started = await service.call("POST", "/v1/runs", json=body, headers=headers)
    return await service.finished(started["run_id"])


def keys_of(provider: ScriptedProvider, marker: str) -> set[str | None]:
    """With which keys the requests of one run came."""
    return {request.key for request in provider.requests if marker in json.dumps(request.body)}


def environments_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def assert_nowhere(service: LiveService, key: str) -> None:
    assert processes_with(key) == []
    assert environments_with(key) == []
    for path in [p for root in (service.state, service.runtime) for p in root.rglob("*") if p.is_file()]:
        assert key.encode() not in path.read_bytes(), path
    assert key not in service.output.read_text()


async def test_each_run_is_paid_with_the_right_key_and_nobody_finds_it(
    service: LiveService, provider: ScriptedProvider
) -> None:
    alice, bob = await token_of(service, "alice"), await token_of(service, "bob")
    stored = await service.call("PUT", "/v1/keys/claude-code", json={"api_key": OWN_KEY}, headers=alice)
    assert OWN_KEY not in json.dumps(stored)

    for user, headers, key, source in (
        ("alice", alice, OWN_KEY, "byo_key"),
        ("bob", bob, REAL_KEY, "technical_user"),
    ):
        record = await run_as(service, headers, LOOK_AROUND.format(user=user))
        assert record["outcome"] == "completed", record["error"]
        assert record["credential_source"] == source
        assert keys_of(provider, f"marker-{user}") == {key}
        assert "ANTHROPIC_API_KEY=" in record["final_text"], "the search itself must have worked"
        events = json.dumps(await service.all_events(record["run_id"]))
        for secret in (OWN_KEY, REAL_KEY):
            assert secret not in record["final_text"] + events
            assert_nowhere(service, secret)

    [listed] = (await service.call("GET", "/v1/keys", headers=alice))["keys"]
    assert listed["last_used_at"] is not None
    assert (await service.call("GET", "/v1/keys", headers=bob))["keys"] == []
    audit = [json.loads(line) for line in (service.state / "audit.log").read_text().splitlines()]
    used = [one for one in audit if one["event"].startswith(("key.", "credential."))]
    assert [(one["event"], one["user_id"], one.get("credential_source")) for one in used] == [
        ("key.set", "alice", None),
        ("credential.used", "alice", "byo_key"),
        ("credential.used", "bob", "technical_user"),
    ]


async def test_inspect_of_a_running_container_shows_neither_key(
    service: LiveService, provider: ScriptedProvider
) -> None:
    alice = await token_of(service, "alice")
    await service.call("PUT", "/v1/keys/claude-code", json={"api_key": OWN_KEY}, headers=alice)
    body = {"backend": "claude-code", "query": "scenario: hang"}
    run = await service.call("POST", "/v1/runs", json=body, headers=alice)
    await provider.reached("hang", timeout=60)
    [container] = [
        line.split()[0]
        for line in (await podman("ps", "--no-trunc", "--format", "{{.ID}} {{.Labels}}")).splitlines()
        if run["run_id"] in line
    ]
    shown = await podman("inspect", container)
    assert OWN_KEY not in shown
    assert REAL_KEY not in shown
    assert_nowhere(service, OWN_KEY)
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    await service.finished(run["run_id"])


async def test_a_service_that_runs_follows_what_the_command_does_to_the_vault(
    service: LiveService, provider: ScriptedProvider
) -> None:
    podmentor = Command(service)
    alice = await token_of(service, "alice")
    await podmentor("keys", "set", "claude-code", "--user", "alice", stdin=f"{OWN_KEY}\n")
    await run_as(service, alice, "marker-one. Please greet me.")
    await podmentor("vault", "rotate")
    await run_as(service, alice, "marker-two. Please greet me.")
    assert keys_of(provider, "marker-one") == keys_of(provider, "marker-two") == {OWN_KEY}
    explained = json.loads(await podmentor("auth", "explain", "--user", "alice", "claude-code", "--json"))
    assert [one["source"] for one in explained["sources"] if one["chosen"]] == ["byo_key"]
    await podmentor("keys", "delete", "claude-code", "--user", "alice")
    await run_as(service, alice, "marker-three. Please greet me.")
    assert keys_of(provider, "marker-three") == {REAL_KEY}
    assert_nowhere(service, OWN_KEY)


async def test_a_key_that_cannot_be_read_ends_its_users_run_and_nobody_elses(
    service: LiveService, provider: ScriptedProvider
) -> None:
    alice, bob = await token_of(service, "alice"), await token_of(service, "bob")
    await service.call("PUT", "/v1/keys/claude-code", json={"api_key": OWN_KEY}, headers=alice)
    await service.call("PUT", "/v1/keys/claude-code", json={"api_key": f"{OWN_KEY}-bob"}, headers=bob)
    connection = sqlite3.connect(service.state / "podmentor.db")
    with connection:
        connection.execute("UPDATE secrets SET sealed = substr(sealed, 1, 50) WHERE user_id = 'alice'")
    connection.close()
    record = await run_as(service, alice, "marker-broken. Please greet me.")
    assert record["error"]["reason"] == "auth_required"
    assert "set it again" in record["error"]["message"]
    assert keys_of(provider, "marker-broken") == set()
    assert (await run_as(service, bob, "marker-bob. Please greet me."))["outcome"] == "completed"
    assert keys_of(provider, "marker-bob") == {f"{OWN_KEY}-bob"}
