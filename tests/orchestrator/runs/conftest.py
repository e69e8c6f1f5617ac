"""A database, a journal and a store on disk; a whole service over a fake runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.runs.storage.database import Database
from orchestrator.runs.storage.store import Store
from orchestrator.runs.stream.journal import Journal


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "podmentor.db")
    await database.open()
    yield database
    await database.aclose()


@pytest.fixture
def journal(database: Database) -> Journal:
    return Journal(database)


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)
