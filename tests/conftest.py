"""The order of the tests when they are spread over several processes, and the end of a session."""

import os

import pytest

from tests.podman import session as own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with containers first: they take long, and the short ones fill what is left at the end."""
    if own.IS_WORKER:
        items.sort(key=lambda item: item.get_closest_marker("podman") is None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """What an interrupted session has left is looked for by the next one."""
    if not own.IS_WORKER and "XDG_RUNTIME_DIR" in os.environ and exitstatus != pytest.ExitCode.INTERRUPTED:
        own.end()
