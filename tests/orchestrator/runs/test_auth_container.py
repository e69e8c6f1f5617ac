"""Containers that serve no run: what they are given, what is made of their answer, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config.models import BackendConfig
from orchestrator.contract.credentials import Resolved
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import InvalidRequestError, SandboxError, UnknownBackendError
from orchestrator.runs import auth_container as module
from orchestrator.runs.auth_container import LOGIN, PROBE, AuthContainers
from tests.fakes.adapter import EchoAdapter
from tests.fakes.runtime import FakeContainer, FakeRuntime
from tests.orchestrator.runs.harness import USER, World

GOOD = AuthStatus(installed=True, authenticated=True)


class Asked(EchoAdapter):
    def login_argv(self) -> list[str] | None:
        return ["echo-cli", "log", "in"]

    def probe_argv(self) -> list[str] | None:
        return ["echo-cli", "auth"]


def containers_of(tmp_path: Path, runtime: FakeRuntime, **backend: object) -> AuthContainers:
    config = BackendConfig.model_validate(backend)
    return AuthContainers(
        runtime=runtime, runtime_dir=tmp_path, instance="i", backends={"echo": config}, host_network=True
    )


def says(code: int, text: bytes = b"") -> Callable[[FakeContainer], None]:
    """A CLI that answers at once."""

    def on_start(container: FakeContainer) -> None:
        container.write(text, "stderr")
        container.exit(code)

    return on_start


def silent(container: FakeContainer) -> None:
    del container


# --- a login --------------------------------------------------------------------------------------------------------


async def test_a_login_has_a_terminal_a_network_its_home_and_nothing_else(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    containers = containers_of(tmp_path, runtime, extra_env={"PROXY": "p"}, api_key="real-key", binary="other-cli")
    home = tmp_path / "home"
    async with containers.login(adapter=Asked(), home=home, term="vt100") as container_id:
        (spec,) = runtime.created
        assert runtime.containers[container_id].state == "created"
        assert (spec.argv, spec.home, spec.interactive) == (["other-cli", "log", "in"], home, True)
        assert (spec.tier, spec.host_network) == (0, True)
        assert (spec.env["TERM"], spec.env["PROXY"]) == ("vt100", "p")
        assert "real-key" not in repr(spec.env)
        assert spec.run_id.startswith(LOGIN)
        assert spec.workspace.mode == "readonly"
        assert list(spec.workspace.source.iterdir()) == list(spec.control_dir.iterdir()) == []
    assert runtime.containers == {}
    assert list(tmp_path.iterdir()) == []


async def test_another_login_command_and_none(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    containers = containers_of(tmp_path, runtime, login_command=["my-login", "-x"], binary="other-cli")
    async with containers.login(adapter=EchoAdapter(), home=tmp_path / "home", term="x"):
        assert runtime.created[0].argv == ["my-login", "-x"]
    with pytest.raises(InvalidRequestError, match="use a key, or set login_command"):
        async with containers_of(tmp_path, runtime).login(adapter=EchoAdapter(), home=tmp_path / "home", term="x"):
            raise AssertionError


# --- after a login --------------------------------------------------------------------------------------------------


async def test_the_probe_asks_the_cli_without_a_network(tmp_path: Path) -> None:
    runtime, home = FakeRuntime(says(1, b"logged out")), tmp_path / "home"
    status = await containers_of(tmp_path, runtime).probe(adapter=Asked(), home=home)
    assert status == AuthStatus(installed=True, authenticated=False, error="logged out")
    (spec,) = runtime.created
    assert (spec.tier, spec.host_network, spec.interactive, spec.argv) == (1, False, False, ["echo-cli", "auth"])
    assert (spec.home, spec.env["ECHO_KEY"]) == (home, "")
    assert spec.run_id.startswith(PROBE)
    assert runtime.containers == {}
    assert list(tmp_path.iterdir()) == []
    runtime.on_start = says(0)
    assert await containers_of(tmp_path, runtime).probe(adapter=Asked(), home=home) == GOOD


async def test_a_probe_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    containers, home = containers_of(tmp_path, runtime), tmp_path / "home"
    assert (await containers.probe(adapter=EchoAdapter(), home=home)).authenticated  # nobody to ask
    assert runtime.created == []
    runtime.has_image = False
    missing = await containers.probe(adapter=Asked(), home=home)
    assert (missing.installed, missing.authenticated) == (False, False)
    assert "images build" in (missing.error or "")
    runtime.has_image, runtime.fail_create = True, SandboxError("no room")
    assert "no room" in ((await containers.probe(adapter=Asked(), home=home)).error or "")
    runtime.fail_create = None
    monkeypatch.setattr(module, "PATIENT_SECONDS", 0)
    assert "no answer" in ((await containers.probe(adapter=Asked(), home=home)).error or "")
    assert runtime.containers == {}
    assert list(tmp_path.iterdir()) == []


async def test_a_container_that_does_not_come_is_not_waited_for_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    runtime = FakeRuntime()
    runtime.hold_create = asyncio.Event()
    status = await containers_of(tmp_path, runtime).probe(adapter=Asked(), home=tmp_path / "home")
    assert "no container could be had" in (status.error or "")
    assert list(tmp_path.iterdir()) == []


async def test_a_vanished_container_is_no_answer(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda container: container.exit(None))
    status = await containers_of(tmp_path, runtime).probe(adapter=Asked(), home=tmp_path / "home")
    assert "vanished" in (status.error or "")


# --- asked for by a user (C15) --------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(EchoAdapter, "probe_argv", lambda self: [self.binary, "auth", "status"])
    return World(tmp_path)


def nothing_left(world: World) -> bool:
    places = (world.paths.runtime_dir, world.paths.state_dir / "runs", world.paths.state_dir / "subagents")
    return not world.runtime.containers and not [path for place in places if place.exists() for path in place.iterdir()]


def use_account(world: World, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    async def resolve(*, user_id: str, backend: str) -> Resolved:
        return Resolved(source="byo_subscription", home=home)

    monkeypatch.setattr(world.credentials, "resolve", resolve)


async def test_c15_the_cli_is_asked_in_a_container_of_its_own(world: World) -> None:
    world.runtime.on_start = says(0)
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == GOOD
    (spec,) = world.runtime.created
    assert spec.argv == ["echo-cli", "auth", "status"]
    assert (spec.tier, spec.workspace.mode, spec.home.name) == (1, "readonly", "home")
    assert spec.env["ECHO_KEY"] == module.PLACEHOLDER
    assert "real-key" not in str(dict(spec.env))
    assert world.relay.grants == {}
    assert nothing_left(world)


async def test_what_the_cli_says_of_a_subscription_is_handed_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_account(world, monkeypatch, home := tmp_path / "home-of-alice")
    world.runtime.on_start = says(1, b"not logged in")
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert status == AuthStatus(installed=True, authenticated=False, error="not logged in")
    assert world.runtime.created[0].home == home
    assert world.runtime.created[0].env["ECHO_KEY"] == ""


async def test_with_a_key_a_cli_that_knows_no_login_is_authenticated(world: World) -> None:
    world.credentials.extra_env = {"ECHO_API_KEY": "x"}
    world.runtime.on_start = says(1, b"not logged in")
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == GOOD
    world.credentials.extra_env = {}
    async with world.service() as service:
        assert not (await service.runs.probe("echo", user_id=USER)).authenticated, "the CLI gets no key at all"


async def test_a_cli_that_is_not_in_the_image(world: World) -> None:
    world.runtime.on_start = says(127, b"echo-cli: not found")
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert (status.installed, status.authenticated) == (False, False)


async def test_a_cli_that_is_silent_for_too_long_is_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_account(world, monkeypatch, tmp_path / "home-of-alice")
    monkeypatch.setattr(AuthContainers.ask, "__kwdefaults__", {"seconds": 0.05})
    async with world.service() as service:
        status = await service.runs.probe("echo", user_id=USER)
    assert (status.installed, status.authenticated) == (True, False)
    assert "no answer" in (status.error or "")
    assert nothing_left(world)


async def test_with_a_key_a_slow_cli_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AuthContainers.ask, "__kwdefaults__", {"seconds": 0.05})
    world.credentials.extra_env = {"ECHO_API_KEY": "x"}
    async with world.service() as service:
        assert await service.runs.probe("echo", user_id=USER) == GOOD
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
        return GOOD

    monkeypatch.setattr(EchoAdapter, "probe_argv", lambda self: None)
    monkeypatch.setattr(EchoAdapter, "probe_auth", probe_auth)
    async with world.service() as service:
        assert (await service.runs.probe("echo", user_id=USER)).authenticated
    assert seen[0]["ECHO_KEY"] == module.PLACEHOLDER
    assert world.runtime.created == []


async def test_a_container_that_cannot_be_had_is_an_error_and_leaves_nothing(world: World) -> None:
    world.runtime.fail_create = SandboxError("no space left")
    async with world.service() as service:
        with pytest.raises(SandboxError, match="no space left"):
            await service.runs.probe("echo", user_id=USER)
    assert nothing_left(world)


async def test_no_more_than_two_at_once(world: World) -> None:
    world.runtime.on_start = silent
    async with world.service() as service:
        probes = asyncio.gather(*(service.runs.probe("echo", user_id=USER) for _ in range(3)))
        for number in range(3):
            container = await service.container()
            assert len(world.runtime.created) <= number + module.AT_ONCE
            container.exit(0)
        assert [status.authenticated for status in await asyncio.wait_for(probes, 10)] == [True] * 3


# --- after a crash --------------------------------------------------------------------------------------------------


def left(world: World, name: str, *, age: int = 0) -> Path:
    place = world.paths.runtime_dir / name
    place.mkdir()
    (place / "output").touch()
    before = place.stat().st_mtime - age
    os.utime(place, (before, before))
    return place


async def test_a_starting_service_leaves_logins_alone_and_sweeps_what_is_over(world: World) -> None:
    containers = AuthContainers(runtime=world.runtime, runtime_dir=world.paths.runtime_dir, instance="i", backends={})
    async with (
        containers.login(adapter=Asked(), home=world.paths.state_dir, term="x") as going_on,
        containers.login(adapter=Asked(), home=world.paths.state_dir, term="x") as over,
    ):
        await world.runtime.start_sandbox(going_on)
        await world.runtime.start_sandbox(over)
        world.runtime.containers[over].exit(0)
        probe, old = left(world, f"{PROBE}1"), left(world, f"{LOGIN}1", age=module.LOGIN_SECONDS + 1)
        async with world.service():
            assert set(world.runtime.containers) == {going_on}
            assert not probe.exists()
            assert not old.exists()
            kept = {path.name for path in world.paths.runtime_dir.iterdir()}
            assert {spec.run_id for spec in world.runtime.created} <= kept


async def test_a_probe_that_a_crash_has_cut_short_is_removed_with_its_container(world: World) -> None:
    containers = AuthContainers(runtime=world.runtime, runtime_dir=world.paths.runtime_dir, instance="i", backends={})
    account = Resolved(source="byo_subscription", home=world.paths.state_dir)
    asking = asyncio.create_task(containers.ask(Asked(), account, seconds=30))
    await asyncio.wait_for(world.runtime.started.get(), 10)
    async with world.service():
        assert nothing_left(world)
    assert (await asking) is not None
