"""The images command over a builder that only reports."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.commands.images import describe, group
from orchestrator.contract.images import ListedImage
from orchestrator.errors import ImageBuildError
from tests.fakes.images import REF, FakeImageBuilder, event


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> FakeImageBuilder:
    fake = FakeImageBuilder()
    bootstrap = ModuleType("orchestrator.bootstrap.service")
    bootstrap.image_builder = lambda config, paths: fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.service", bootstrap)
    return fake


def run(*args: str) -> Result:
    return CliRunner().invoke(group, list(args), obj=SimpleNamespace(config=None, paths=None))


def test_build_reports_each_step_and_prints_the_size(builder: FakeImageBuilder) -> None:
    result = run("build", "claude-code")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "[1/2] base: base image ...",
        "[1/2] base: base image (done, 12.3 s)",
        f"{REF.tag}  578 MB",
    ]
    assert builder.builds == [(["claude-code"], None, None, False)]


def test_verbose_shows_the_tools_lines_as_they_are(builder: FakeImageBuilder) -> None:
    assert "      STEP 1/5 [bold]not markup[/bold]\n" in run("build", "-v").output


def test_options_reach_the_builder(builder: FakeImageBuilder, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    run("build", "--all", "--base", "debian:trixie-slim", "--ca-bundle", str(bundle), "--no-cache")
    assert builder.builds == [([], "debian:trixie-slim", bundle, True)]


def test_json_is_alone_on_stdout(builder: FakeImageBuilder) -> None:
    built = run("build", "--json")
    assert json.loads(built.stdout)[0]["tag"] == REF.tag
    assert "[1/2] base" in built.stderr
    [listed] = json.loads(run("list", "--json").stdout)
    assert (listed["backend"], listed["current"], listed["up_to_date"]) == ("claude-code", True, False)
    assert json.loads(run("prune", "--json").stdout) == [{"name": "old", "image_id": "b" * 64, "size_bytes": 1}]


def test_names_and_all_do_not_go_together(builder: FakeImageBuilder) -> None:
    result = run("build", "--all", "claude-code")
    assert result.exit_code == 2
    assert builder.builds == []


def test_a_failure_shows_what_the_tool_said_last(builder: FakeImageBuilder) -> None:
    builder.error = ImageBuildError("podman build failed", lines=["npm error", "network"])
    result = run("build")
    assert isinstance(result.exception, ImageBuildError)
    assert result.stderr.splitlines()[-2:] == ["  | npm error", "  | network"]


def test_a_cancelled_build_is_an_interruption(builder: FakeImageBuilder) -> None:
    builder.error = asyncio.CancelledError()
    result = run("build")
    assert result.exit_code != 0
    assert "Aborted" in result.output


def test_list_says_what_is_current_and_what_is_out_of_date(builder: FakeImageBuilder) -> None:
    old = ListedImage(ref=REF, current=False, up_to_date=False)
    builder.images.append(old)
    lines = run("list").output.splitlines()
    assert lines[0].split() == ["BACKEND", "CLI", "SIZE", "CREATED", "STATE", "IMAGE"]
    assert "578 MB" in lines[1]
    assert "2026-11-30 13:31" in lines[1]
    assert "current, out of date" in lines[1]
    assert " old " in lines[2]
    assert REF.tag in lines[2]


def test_list_without_images_says_how_to_make_them(builder: FakeImageBuilder) -> None:
    builder.images.clear()
    result = run("list")
    assert result.exit_code == 0
    assert "podmentor images build --all" in result.stderr


def test_events_as_lines() -> None:
    assert describe(event("skipped", "x is up to date")) == "[1/2] base: x is up to date (nothing to do)"
    assert describe(event("warning", "cannot start")) == "[1/2] base: cannot start (warning)"


SCRIPT = """
import asyncio, sys, types
from types import SimpleNamespace
from tests.fakes.images import FakeImageBuilder

class Endless(FakeImageBuilder):
    async def build(self, *args, **kwargs):
        result = await super().build(*args, **kwargs)
        if "--forever" in sys.argv:
            try:
                print("waiting", flush=True)
                await asyncio.Event().wait()
            finally:
                print("tidied up", flush=True)
        return result

bootstrap = types.ModuleType("orchestrator.bootstrap.service")
bootstrap.image_builder = lambda config, paths: Endless()
sys.modules["orchestrator.bootstrap.service"] = bootstrap
from orchestrator.cli.commands.images import group
group.main(["build"], obj=SimpleNamespace(config=None, paths=None))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_build_tidy_up(number: signal.Signals) -> None:
    argv = [sys.executable, "-c", SCRIPT, "--forever"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        while "waiting" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
    assert "tidied up" in rest
    assert process.returncode > 0


def test_a_terminal_gets_the_same_lines() -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # the other end is closed: this is how a terminal says so
            pass
        os.close(leader)
        assert process.wait(30) == 0
    assert b"[1/2] base: base image (done, 12.3 s)" in shown
    assert f"{REF.tag}  578 MB".encode() in shown
