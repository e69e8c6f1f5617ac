"""Containers that serve no run: what they are given, and that nothing of them is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.config.models import BackendConfig
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import InvalidRequestError, SandboxError
from orchestrator.runs import aside as module
from orchestrator.runs.aside import ASIDE, Aside
from tests.fakes.adapter import EchoAdapter
from tests.fakes.runtime import Box, FakeRuntime
from tests.orchestrator.runs.harness import World


class Asked(EchoAdapter):
    def login_argv(self) -> list[str] | None:
        return ["echo-cli", "log", "in"]

    def probe_argv(self) -> list[str] | None:
        return ["echo-cli", "auth"]


def aside_of(tmp_path: Path, runtime: FakeRuntime, **backend: object) -> Aside:
    config = BackendConfig.model_validate(backend)
    return Aside(runtime=runtime, runtime_dir=tmp_path, instance="i", backends={"echo": config}, host_network=True)


async def test_a_login_has_a_terminal_a_network_its_home_and_nothing_else(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    aside = aside_of(tmp_path, runtime, extra_env={"PROXY": "p"}, api_key="real-key", binary="other-cli")
    home = tmp_path / "home"
    async with aside.login(adapter=Asked(), home=home, term="vt100") as container_id:
        (spec,) = runtime.created
        assert runtime.boxes[container_id].state == "created"
        assert (spec.argv, spec.home, spec.interactive) == (["other-cli", "log", "in"], home, True)
        assert (spec.tier, spec.host_network) == (0, True)
        assert (spec.env["TERM"], spec.env["PROXY"]) == ("vt100", "p")
        assert "real-key" not in repr(spec.env)
        assert spec.run_id.startswith(ASIDE)
        assert spec.workspace.mode == "readonly"
        assert list(spec.workspace.source.iterdir()) == list(spec.control_dir.iterdir()) == []
    assert runtime.boxes == {}
    assert list(tmp_path.iterdir()) == []


async def test_another_login_command_and_none(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    aside = aside_of(tmp_path, runtime, login_command=["my-login", "-x"], binary="other-cli")
    async with aside.login(adapter=EchoAdapter(), home=tmp_path / "home", term="x"):
        assert runtime.created[0].argv == ["my-login", "-x"]
    with pytest.raises(InvalidRequestError, match="login_command"):
        async with aside_of(tmp_path, runtime).login(adapter=EchoAdapter(), home=tmp_path / "home", term="x"):
            raise AssertionError


async def test_the_probe_asks_the_cli_without_a_network(tmp_path: Path) -> None:
    def reply(box: Box) -> None:
        box.write(b"logged out", "stderr")
        box.exit(1)

    runtime = FakeRuntime(reply)
    status = await aside_of(tmp_path, runtime).probe(adapter=Asked(), home=tmp_path / "home")
    assert status == AuthStatus(installed=True, authenticated=False, error="logged out")
    (spec,) = runtime.created
    assert (spec.tier, spec.host_network, spec.interactive, spec.argv) == (1, False, False, ["echo-cli", "auth"])
    assert runtime.boxes == {}
    assert list(tmp_path.iterdir()) == []
    runtime.on_start = lambda box: box.exit(0)
    assert (await aside_of(tmp_path, runtime).probe(adapter=Asked(), home=tmp_path / "home")).authenticated


async def test_a_probe_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    aside, home = aside_of(tmp_path, runtime), tmp_path / "home"
    assert (await aside.probe(adapter=EchoAdapter(), home=home)).authenticated  # nobody to ask
    assert runtime.created == []
    runtime.has_image = False
    missing = await aside.probe(adapter=Asked(), home=home)
    assert (missing.installed, missing.authenticated) == (False, False)
    assert "images build" in (missing.error or "")
    runtime.has_image, runtime.fail_create = True, SandboxError("no room")
    assert "no room" in ((await aside.probe(adapter=Asked(), home=home)).error or "")
    runtime.fail_create = None
    monkeypatch.setattr(module, "PROBE_SECONDS", 0)
    assert "no answer" in ((await aside.probe(adapter=Asked(), home=home)).error or "")
    assert runtime.boxes == {}
    assert list(tmp_path.iterdir()) == []


async def test_a_starting_service_leaves_logins_alone_and_sweeps_their_leftovers(tmp_path: Path) -> None:
    world = World(tmp_path)
    aside = Aside(runtime=world.runtime, runtime_dir=tmp_path, instance="i", backends={})
    async with (
        aside.login(adapter=Asked(), home=tmp_path, term="x") as going_on,
        aside.login(adapter=Asked(), home=tmp_path, term="x") as over,
    ):
        await world.runtime.start_sandbox(going_on)
        await world.runtime.start_sandbox(over)
        world.runtime.boxes[over].exit(0)
        async with world.service():
            assert set(world.runtime.boxes) == {going_on}


async def test_directories_of_a_crash_are_swept_and_those_of_a_login_are_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    old, new = (world.paths.runtime_dir / f"{ASIDE}{name}" for name in ("old", "new"))
    for place in (old, new):
        (place / "control").mkdir(parents=True)
    os.utime(old, (0, 0))
    async with world.service():
        assert (old.exists(), new.exists()) == (False, True)
