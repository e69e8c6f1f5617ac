from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from orchestrator.bench.fixture import Stage
from tests.orchestrator.bench.actor import Actors, stage


@pytest.fixture
def good(tmp_path: Path) -> Iterator[Stage]:
    """A backend that does everything right."""
    made = stage(tmp_path)
    yield made
    cast("Actors", made.runs).close()


@pytest.fixture
def actors(good: Stage) -> Actors:
    return cast("Actors", good.runs)
