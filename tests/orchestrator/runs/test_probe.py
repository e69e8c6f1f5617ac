"""Asking a CLI whether it could log in, in a container that leaves nothing."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from orchestrator.contract.credentials import Resolved
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import SandboxError, UnknownBackendError
from orchestrator.runs import probe as probing
from orchestrator.runs.probe import new_id
from tests.fakes.adapter import EchoAdapter
from tests.fakes.runtime import Box
from tests.orchestrator.runs.harness import USER, World, answer


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(EchoAdapter, "probe_argv", lambda self: [self.binary, "auth", "status"])
    return World(tmp_path)


def says(code: int, text: bytes = b"") -> object:
    """A CLI that answers at once."""

    def on_start(box: Box) -> None:
        box.write(text, "stderr")
        box.exit(code)

    return on_start


def nothing_left(world: World) -> bool:
    paths = world.paths
    places = (paths.runtime_dir, paths.state_dir / "runs")
    return not world.runtime.boxes and not [path for place in places if place.exists() for path in place.iterdir()]


async def test_c15_the_cli_is_asked_in_a_container_of_its_own(world: World) -> None:
    world.runtime.on_start = says(0)  # type: ignore[assignment]
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == AuthStatus(installed=True, authenticated=True)
    (spec,) = world.runtime.created
    assert spec.argv == ["podmentor-entry", "echo-cli", "auth", "status"]
    assert spec.tier == 1
    assert spec.workspace.mode == "readonly"
    assert spec.env["ECHO_KEY"] == probing.PLACEHOLDER
    assert "real-key" not in str(dict(spec.env))
    assert world.relay.grants == {}
    assert nothing_left(world)


async def test_what_the_cli_says_of_a_subscription_is_handed_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home-of-alice"

    async def resolve(*, user_id: str, backend: str) -> Resolved:
        return Resolved(link="byo_subscription", home=home)

    monkeypatch.setattr(world.credentials, "resolve", resolve)
    world.runtime.on_start = says(1, b"not logged in")  # type: ignore[assignment]
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert status == AuthStatus(installed=True, authenticated=False, error="not logged in")
    assert world.runtime.created[0].home == home
    assert world.runtime.created[0].env["ECHO_KEY"] == ""


async def test_with_a_key_a_cli_that_knows_no_login_is_authenticated(world: World) -> None:
    world.credentials.extra_env = {"ECHO_API_KEY": "x"}
    world.runtime.on_start = says(1, b"not logged in")  # type: ignore[assignment]
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == AuthStatus(installed=True, authenticated=True)
    world.credentials.extra_env = {}
    async with world.service() as service:
        assert not (await service.runs.probe("echo", user_id=USER)).authenticated, "the CLI gets no key at all"


async def test_a_cli_that_is_not_in_the_image(world: World) -> None:
    world.runtime.on_start = says(127, b"echo-cli: not found")  # type: ignore[assignment]
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert (status.installed, status.authenticated) == (False, False)


async def test_a_cli_that_is_silent_for_too_long_is_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*, user_id: str, backend: str) -> Resolved:
        return Resolved(link="byo_subscription", home=tmp_path / "home-of-alice")

    monkeypatch.setattr(world.credentials, "resolve", resolve)
    monkeypatch.setattr(probing, "PROBE_SECONDS", 0.05)
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert (status.installed, status.authenticated) == (True, False)
    assert "no answer" in (status.error or "")
    assert nothing_left(world)


async def test_with_a_key_a_slow_cli_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "PROBE_SECONDS", 0.05)
    world.credentials.extra_env = {"ECHO_API_KEY": "x"}
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == AuthStatus(installed=True, authenticated=True)
    assert nothing_left(world)


async def test_without_an_image_or_a_credential_no_container_is_made(world: World) -> None:
    async with world.service() as service:
        world.credentials.api_key = None
        status = await service.runs.probe("echo", user_id=USER)
        assert (status.installed, status.authenticated) == (True, False)
        assert "there is no key" in (status.error or "")
        world.runtime.has_image = False
        status = await service.runs.probe("echo", user_id=USER)
        assert (status.installed, status.authenticated) == (False, False)
        assert "podmentor images build echo" in (status.error or "")
        with pytest.raises(UnknownBackendError):
            await service.runs.probe("other", user_id=USER)
    assert world.runtime.created == []


async def test_an_adapter_without_a_command_judges_by_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    async def probe_auth(self: EchoAdapter, env: dict[str, str]) -> AuthStatus:
        seen.append(env)
        return AuthStatus(installed=True, authenticated=True)

    monkeypatch.setattr(EchoAdapter, "probe_argv", lambda self: None)
    monkeypatch.setattr(EchoAdapter, "probe_auth", probe_auth)
    async with world.service() as service:
        assert (await service.runs.probe("echo", user_id=USER)).authenticated
    assert seen[0]["ECHO_KEY"] == probing.PLACEHOLDER
    assert world.runtime.created == []


async def test_a_container_that_cannot_be_had_is_an_error_and_leaves_nothing(world: World) -> None:
    world.runtime.fail_create = SandboxError("no space left")
    async with world.service() as service:
        with pytest.raises(SandboxError, match="no space left"):
            await service.runs.probe("echo", user_id=USER)
    assert nothing_left(world)


async def test_what_a_crash_has_left_of_a_probe_is_removed_at_the_next_start(world: World) -> None:
    world.runtime.on_start = lambda box: None
    async with world.service() as service:
        record = await service.submit()
        box = await service.box()
        answer(box)
        await service.finished(record.run_id)
    left = new_id()
    (world.paths.run_dir(left)).mkdir(parents=True)
    (world.paths.run_dir(left) / "ctr.log").write_text("x")
    async with world.service():
        assert not world.paths.run_dir(left).exists()
        assert world.paths.run_dir(record.run_id).exists()


def test_no_run_can_have_the_id_of_a_probe() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(probe_id) == 32 and int(probe_id, 16) and probe_id[12] == "0" for probe_id in ids)
    assert uuid.uuid4().hex[12] == "4"


async def test_no_more_than_two_at_once(world: World) -> None:
    started: list[Box] = []
    world.runtime.on_start = started.append
    async with world.service() as service:
        probes = asyncio.gather(*(service.runs.probe("echo", user_id=USER) for _ in range(3)))
        for number in range(3):
            box = await service.box()
            assert len(world.runtime.created) <= number + probing.AT_ONCE
            box.exit(0)
        assert [status.authenticated for status in await asyncio.wait_for(probes, 10)] == [True] * 3
