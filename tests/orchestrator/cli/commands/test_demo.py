import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands.demo import fingerprint, make_repo
from orchestrator.config.models import Config, Paths
from tests.fakes.api_server import HELLO, FakeApi, FakeHandle, make_run, serve, state_lock
from tests.fakes.cli_main import fake_bootstrap
from tests.orchestrator.cli.conftest import Invoke

FILES = {"README.md": "# sample\n", "a.sh": "echo\n"}


@dataclass
class Stage:
    """What the demo's service is made to do, and what it was given."""

    api: FakeApi
    key: str = ""
    config: Config | None = None
    leak: bool = False
    touch_repo: bool = False


@pytest.fixture
def stage(place: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> Stage:
    stage = Stage(api)
    module: Any = fake_bootstrap()

    @contextlib.asynccontextmanager
    async def scripted_provider(*, scenario: str, api_key: str, pace: float) -> AsyncIterator[Any]:
        assert (scenario, pace) == ("demo", 0.0)  # no pace when nobody watches
        stage.key = api_key

        class Provider:
            base_url = "http://127.0.0.1:9"

        yield Provider()

    @contextlib.asynccontextmanager
    async def running_service(config: Config, paths: Paths, *, listen_tcp: bool) -> AsyncIterator[FakeHandle]:
        stage.config = config
        assert not listen_tcp
        if stage.leak:
            stage.api.steps = [("message_delta", {"text": f"env: {stage.key}", "message_id": "m"}), *HELLO]
        with state_lock(paths):
            async with serve(stage.api, paths.api_socket):
                yield FakeHandle(socket=paths.api_socket, token=stage.api.token, port=None)

    class Api(FakeApi):
        async def _patch(self, request: Any) -> Any:
            if stage.touch_repo:
                (Path(self.bodies[0]["repo"]) / "a.sh").write_text("changed\n")
            return await super()._patch(request)

    stage.api = Api()
    module.scripted_provider, module.running_service, module.SAMPLE_FILES = scripted_provider, running_service, FILES
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.service", module)
    return stage


def test_all_checks_hold(invoke: Invoke, stage: Stage, place: Path) -> None:
    found = invoke("demo")
    assert found.exit_code == 0, found.output
    for text in (
        "● Bash  ls -la",
        "[Subagent ID: sub_1 - Use this ID to continue this conversation] All done.",
        "+new",
        "✓ the run completed",
        "✓ the agent used a tool",
        "✓ the repo itself is untouched",
        "✓ the key stayed outside",
    ):
        assert text in found.stdout
    assert "✗" not in found.stdout
    assert "go on with" not in found.stdout
    assert "\x1b" not in found.output
    assert stage.api.deleted == ["sub_1"]
    assert not (place / "s/podmentor/demo").exists()
    assert [path.name for path in (place / "r").iterdir()] == ["podmentor"]


def test_the_demo_is_apart_from_everything(invoke: Invoke, stage: Stage, place: Path) -> None:
    Path("podmentor.yaml").write_text("podman: {start_concurrency: 2}\nrepos: {mine: /usr}\n")
    assert invoke("demo").exit_code == 0
    config = stage.config
    assert config is not None
    backend = config.external_agent.backends["claude-code"]
    assert config.storage.state_dir == place / "s/podmentor/demo/state"
    assert (config.repos, config.podman.start_concurrency) == ({}, 2)
    assert config.external_agent.default_sandbox_tier == 1
    assert backend.base_url == "http://127.0.0.1:9"
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == stage.key
    body = stage.api.bodies[0]
    assert (body["tier"], body["workspace"], body["backend"]) == (1, "overlay", "claude-code")


def test_keep(invoke: Invoke, stage: Stage, place: Path) -> None:
    found = invoke("demo", "--keep")
    assert f"kept: {place}/s/podmentor/demo" in found.stdout
    assert stage.api.deleted == []
    assert list((place / "s/podmentor/demo").glob("repo-*/a.sh"))


def test_json_is_one_report(invoke: Invoke, stage: Stage) -> None:
    found = invoke("demo", "--json")
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    assert report["ok"] is True
    assert [check["ok"] for check in report["checks"]] == [True] * 5
    assert report["envelope"].endswith("] All done.")
    assert report["events"] == 11
    assert found.stderr == ""


def failed(found: Any) -> list[str]:
    return [check["name"] for check in json.loads(found.stdout)["checks"] if not check["ok"]]


def test_a_failed_run_fails_the_demo(invoke: Invoke, stage: Stage) -> None:
    stage.api.run = make_run("run_1", outcome="failed", error={"reason": "image_missing", "message": "build it"})
    found = invoke("demo", "--json")
    assert found.exit_code == 3
    assert failed(found) == ["the run completed"]


def test_no_tool_fails_the_demo(invoke: Invoke, stage: Stage) -> None:
    stage.api.steps = [step for step in HELLO if not step[0].startswith("tool")]
    found = invoke("demo", "--json")
    assert (found.exit_code, failed(found)) == (1, ["the agent used a tool"])


def test_a_touched_repo_fails_the_demo(invoke: Invoke, stage: Stage) -> None:
    stage.touch_repo = True
    found = invoke("demo", "--json")
    assert (found.exit_code, failed(found)) == (1, ["the repo itself is untouched"])


def test_a_key_that_got_out_fails_the_demo(invoke: Invoke, stage: Stage) -> None:
    stage.leak = True
    found = invoke("demo", "--json")
    assert (found.exit_code, failed(found)) == (1, ["the key stayed outside"])


def test_two_demos_at_once(invoke: Invoke, stage: Stage, place: Path) -> None:
    state = place / "s/podmentor/demo/state"
    state.mkdir(parents=True)
    (state / "service.lock").touch()
    found = invoke("demo")
    assert found.exit_code == 1
    assert "another service holds" in found.output
    assert state.exists()  # it is the other one's


SAMPLE = {"README.md": "# x\n", "src/a.sh": "echo\n"}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
async def test_a_repo_with_one_commit(tmp_path: Path) -> None:
    await make_repo(tmp_path / "r", SAMPLE)
    git = await asyncio.create_subprocess_exec(
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(tmp_path / "r"),
        "status",
        "--porcelain",
        "--branch",
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await git.communicate())[0] == b"## main\n"
    assert (tmp_path / "r/src/a.sh").read_text() == "echo\n"


async def test_without_git_it_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    await make_repo(tmp_path / "r", SAMPLE)
    assert not (tmp_path / "r/.git").exists()
    assert (tmp_path / "r/README.md").exists()


def edit(root: Path) -> None:
    (root / "a").write_text("changed")


def chmod(root: Path) -> None:
    (root / "a").chmod(0o755)


def add_folder(root: Path) -> None:
    (root / "empty").mkdir()


def remove(root: Path) -> None:
    (root / "d/b").unlink()


def relink(root: Path) -> None:
    (root / "l").unlink()
    (root / "l").symlink_to("d")


def rename(root: Path) -> None:
    (root / "a").rename(root / "c")


@pytest.mark.parametrize("change", [edit, chmod, add_folder, remove, relink, rename])
def test_every_change_shows(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_text("a")
    (tmp_path / "d/b").write_text("b")
    (tmp_path / "l").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    change(tmp_path)
    assert fingerprint(tmp_path) != before
