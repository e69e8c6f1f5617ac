"""Several parts of one process and other processes share the database's file, and lose nothing by it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.api.tokens import TokenStore
from orchestrator.config.models import Paths
from orchestrator.errors import NotFoundError, StorageError
from orchestrator.runs.storage.database import Database
from orchestrator.system.sqlite import DamagedError, SqliteThread, ensure_private_file, storage_error, transaction
from tests.orchestrator.vault.kit import opened_vault, paths_in

STRANGER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
with connection:
    connection.execute("UPDATE secrets SET fingerprint = ?", (sys.argv[2],))
connection.close()
"""


@asynccontextmanager
async def opened_database(paths: Paths) -> AsyncIterator[Database]:
    database = Database(paths.database)
    try:
        await database.open()
        yield database
    finally:
        await database.aclose()


async def test_what_another_process_writes_is_seen_and_what_we_write_stays(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    ensure_private_file(paths.database)
    async with opened_database(paths), opened_vault(paths) as vault, TokenStore(paths.database) as tokens:
        await vault.put("alice", "a", "value-of-alice")
        await tokens.create("alice", "user")
        for number in range(3):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", STRANGER, str(paths.database), f"changed-{number}"
            )
            assert await asyncio.wait_for(process.wait(), 30) == 0
            assert [one.fingerprint for one in await vault.list_secrets()] == [f"changed-{number}"]
            assert paths.database.with_name("podmentor.db-wal").exists(), "nobody else may fold our log away"
        await vault.put("bob", "a", "value-of-bob")
    async with opened_vault(paths) as vault, TokenStore(paths.database) as tokens:
        assert [one.user_id for one in await vault.list_secrets()] == ["alice", "bob"]
        assert len(await tokens.list_tokens()) == 1


def test_the_file_is_its_owners_alone_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a" / "podmentor.db"
    before = os.umask(0)
    try:
        ensure_private_file(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_text("kept")
    ensure_private_file(path)
    assert path.read_text() == "kept"


def test_what_is_wrong_with_a_database_is_said_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA max_page_count = 4")
    with pytest.raises(sqlite3.Error) as full:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert "the disk is full" in storage_error(full.value, path).message
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.Error) as locked:
        sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    assert "another process keeps" in storage_error(locked.value, path).message
    connection.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.Error) as damaged:
        sqlite3.connect(path).execute("SELECT * FROM t")
    error = storage_error(damaged.value, path)
    assert isinstance(error, DamagedError)
    assert "backup" in error.message
    assert "free space" in storage_error(sqlite3.OperationalError("anything else"), path).message


# --- a connection in a thread of its own ---


def make_table(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")


async def test_the_connection_begins_with_the_first_use_and_lives_in_one_thread(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.db"
    async with SqliteThread(path, name="the shelf", prepare=make_table) as database:
        assert not path.exists()
        names = [await database.run(lambda db: threading.current_thread().name) for _ in range(3)]
        assert (len(set(names)), names[0].startswith("shelf")) == (1, True)
        assert await database.run(lambda db: db.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
    await database.aclose()
    with pytest.raises(RuntimeError):
        await database.run(lambda db: None)


async def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with SqliteThread(tmp_path / "file" / "b.db", name="the shelf", prepare=make_table) as database:
        with pytest.raises(StorageError, match="the shelf cannot be used"):
            await database.run(lambda db: None)
    (tmp_path / "c.db").write_text("no database" * 100)
    async with SqliteThread(tmp_path / "c.db", name="the shelf", prepare=make_table) as database:
        with pytest.raises(DamagedError, match="damaged"):
            await database.run(lambda db: None)


async def test_errors_of_ours_come_through_and_a_failed_preparation_is_tried_again(tmp_path: Path) -> None:
    fails = True

    def prepare(db: sqlite3.Connection) -> None:
        if fails:
            raise NotFoundError("not yet")
        make_table(db)

    async with SqliteThread(tmp_path / "b.db", name="the shelf", prepare=prepare) as database:
        with pytest.raises(NotFoundError, match="not yet"):
            await database.run(lambda db: None)
        fails = False
        assert await database.run(lambda db: db.execute("SELECT count(*) FROM t").fetchone()[0]) == 0


async def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    def half(db: sqlite3.Connection) -> None:
        with transaction(db):
            db.execute("INSERT INTO t VALUES (1)")
            raise NotFoundError("stop")

    def whole(db: sqlite3.Connection) -> list[int]:
        with transaction(db):
            db.execute("INSERT INTO t VALUES (2)")
        return [row[0] for row in db.execute("SELECT n FROM t")]

    async with SqliteThread(tmp_path / "b.db", name="the shelf", prepare=make_table) as database:
        with pytest.raises(NotFoundError):
            await database.run(half)
        assert await database.run(whole) == [2]
