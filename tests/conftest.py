"""How the tests are spread over several processes (``-n``), and the end of a session."""

from __future__ import annotations

import os
import signal
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

ONE_SERVICE = ("tests/podman/test_hostile_resources.py", "tests/podman/test_repository_settings.py")
ONE_DISK = ("tests/podman/test_full_disk.py",)
"""Each fills the one small disk."""


def together(nodeid: str) -> str:
    """What has the same answer runs in one process, one after the other: tests that share what is dear to make."""
    module = nodeid.partition("::")[0]
    if module in IMAGES:
        return "images"
    if module == "tests/podman/test_backends.py":
        return f"{module}[{nodeid.rpartition('[')[2]}"  # the backend
    return nodeid if module.startswith("tests/podman/") and module not in (*ONE_SERVICE, *ONE_DISK) else module


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with containers first: they take long, and the short ones fill what is left at the end."""
    if own.IS_WORKER:
        items.sort(key=lambda item: item.get_closest_marker("podman") is None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """What an interrupted session has left is looked for by the next one."""
    if not own.IS_WORKER and "XDG_RUNTIME_DIR" in os.environ and exitstatus != pytest.ExitCode.INTERRUPTED:
        own.end()
