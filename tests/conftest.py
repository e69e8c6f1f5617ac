"""How the tests are spread over several processes (``-n``), and the end of a session."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.podman import session as own

# How long an example takes tells of the machine's load; and the checkout may not be writable.
settings.register_profile("podmentor", deadline=None, database=None)
settings.load_profile("podmentor")

IMAGES = ("tests/podman/test_images.py", "tests/podman/test_upgrade.py", "tests/podman/test_example.py")
"""Builds of images take turns: in one process, where none waits for another."""

ONE_SERVICE = tuple(
    f"tests/podman/test_{name}.py"
    for name in (
        "claude_code",
        "codex",
        "gemini",
        "hostile_network",
        "hostile_resources",
        "opencode",
        "repository_settings",
        "secrets",
    )
)
"""The tests of each share a service."""
ONE_DISK = ("tests/podman/test_full_disk.py",)
"""Each fills the one small disk."""
ALONE = (
    "tests/podman/test_hostile_neighbours.py::",
    "tests/podman/test_hostile_resources.py::test_a_fork_bomb_fails_inside_and_leaves_the_machine_usable",
)
"""What is marked so waits until no other test with containers runs, and lets none begin: in one process, and last."""
LONGEST = tuple(
    f"tests/podman/test_{name}.py"
    for name in ("backends", "repository_settings", "soak", "durability", "images", "upgrade", "example", "gemini")
)
"""What takes longest begins first: at the end nobody waits for it."""


def together(nodeid: str) -> str:
    """What has the same answer runs in one process, one after the other: tests that share what is dear to make."""
    module = nodeid.partition("::")[0]
    if nodeid.startswith(ALONE):
        return "alone"
    if module in IMAGES:
        return "images"
    if module == "tests/podman/test_backends.py":
        return f"{module}[{nodeid.rpartition('[')[2]}"  # the backend
    whole = not module.startswith("tests/podman/") or module in (*ONE_SERVICE, *ONE_DISK)
    return module if whole else nodeid


def turn(nodeid: str, *, podman: bool) -> int:
    """When it has its turn, smallest first: those with containers take long, and the short ones fill what is left."""
    module = nodeid.partition("::")[0]
    if not podman:
        return len(LONGEST) + 2
    if module in LONGEST:
        return LONGEST.index(module)
    return len(LONGEST) + nodeid.startswith(ALONE)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Groups in the order in which their tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def pytest_configure() -> None:
    """Whoever ends the tests, with Ctrl-C or otherwise, has them tidy up.

    What the tests start heeds Ctrl-C as well: of a shell that runs them in the background it would inherit SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not own.IS_WORKER:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """The command and the relay set up logging for their process; the tests' process goes on without that.

    No fixture: one of a wider scope, which may run the command as well, would come before it.
    """
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return (yield)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert item.nodeid.startswith(ALONE) == (item.get_closest_marker("alone") is not None), item.nodeid
    if own.IS_WORKER:
        items.sort(key=lambda item: turn(item.nodeid, podman=item.get_closest_marker("podman") is not None))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """What an interrupted session has left is looked for by the next one."""
    if not own.IS_WORKER and "XDG_RUNTIME_DIR" in os.environ and exitstatus != pytest.ExitCode.INTERRUPTED:
        own.end()
