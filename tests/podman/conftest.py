"""The scripted provider and a live service for tests with real containers."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman import session
from tests.podman.live import REAL_KEY, STARTED, LiveService, live_service

SHOWN = 20_000
"""Characters of a service's log that are shown of a test that failed."""


@pytest.fixture(scope="session", autouse=True)
def own_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What killed sessions have left is removed; what this one makes is known as its own."""
    files = tmp_path_factory.getbasetemp()
    session.begin(files.parent if session.IS_WORKER else files)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests marked ``alone`` have the machine to themselves.  First of all: the wait is not part of a test's time."""
    if item.get_closest_marker("podman") is None:  # pytest asks here for every test, wherever it is
        return (yield)
    with session.beside_others(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a test that failed, the log of its services is shown."""
    report = yield
    if report.failed:
        for service in STARTED:
            if service.output.exists():
                said = service.output.read_text(errors="replace")[-SHOWN:]
                report.sections.append((f"service log ({service.state}, {call.when})", said))
    if call.when == "teardown":
        STARTED.clear()
    return report


@functools.cache
def delegated() -> frozenset[str]:
    """The cgroup controllers that limit this user's containers: none with cgroup v1, where limits are ignored."""
    shown = subprocess.run(["podman", "info", "--format=json"], check=True, capture_output=True, cwd="/").stdout
    host = json.loads(shown)["host"]
    return frozenset(host["cgroupControllers"] or []) if host["cgroupVersion"] == "v2" else frozenset()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("delegation") and (lacking := {"memory", "pids", "cpu"} - delegated()):
        pytest.skip(f"no cgroup v2 controller {', '.join(sorted(lacking))} for this user; scripts/test --vm has them")


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(api_key=REAL_KEY) as provider:
        yield provider


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    async with live_service(tmp_path, provider.base_url) as service:
        yield service


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small git repository."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "README.md").write_text("# sample\n")
    (root / "gone.txt").write_text("to be deleted\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(root)]
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *argv], check=True)
    return root
