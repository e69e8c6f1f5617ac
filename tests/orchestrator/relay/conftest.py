import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.orchestrator.relay.support import Provider, provider_on_loopback


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: those of Unix sockets have 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="pm-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with provider_on_loopback() as running:
        yield running
