"""Files that are not this podmentor's database are refused, with what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.runs.storage.database import SCHEMA_VERSION, Database


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
async def test_a_database_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "podmentor.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"CREATE TABLE runs (x); INSERT INTO runs VALUES (1); PRAGMA user_version={version};")
    connection.close()
    database = Database(path)
    try:
        with pytest.raises(StorageError, match=f"podmentor.*schema {version}, this one knows {SCHEMA_VERSION}"):
            await database.open()
    finally:
        await database.aclose()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM runs").fetchall() == [(1,)]
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "podmentor.db") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    database = Database(tmp_path / "podmentor.db")
    with pytest.raises(StorageError, match="newer"):
        await database.open()
    await database.aclose()


async def test_what_is_not_a_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "podmentor.db").write_bytes(b"not a database, but long enough to be looked at" * 40)
    database = Database(tmp_path / "podmentor.db")
    with pytest.raises(StorageError, match=r"is damaged.*backup"):
        await database.open()
    await database.aclose()
