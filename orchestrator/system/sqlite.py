"""SQLite: a file made for its owner alone, one connection in a thread of its own, and what its errors mean.

SQLite itself would make the file readable for others.  A file that is there must not be opened beside SQLite: closing
any descriptor of it takes away every lock that this process has on it, after which another process takes itself for
the last user, folds the write-ahead log away, and what is written here from then on is lost.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar

from orchestrator.errors import PodmentorError, StorageError

T = TypeVar("T")

BUSY_MS: Final = 5000
"""How long a statement waits for another connection that has the database locked."""


class DamagedError(StorageError):
    """The file is no sound database (any more): trying again is of no use."""


def ensure_private_file(path: Path) -> None:
    """Make the file (0600), and its directory (0700), unless they are there.  Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return


def storage_error(error: sqlite3.Error, path: Path) -> StorageError:
    """What is wrong with the file, and what to do."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the rest of the code are details
        case sqlite3.SQLITE_FULL:
            what = f"the disk is full: the database {path} cannot be written; make room (podmentor gc)"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            what = f"another process keeps the database {path} locked; end it"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedError(
                f"the database {path} is damaged ({error}): stop podmentor, move the file away with the -wal and -shm "
                "files beside it, and put a backup in its place (`sqlite3 FILE .recover` saves what can be read)",
                path=str(path),
            )
        case _:
            what = f"the database {path} cannot be used: {error}; check free space and permissions"
    return StorageError(what, path=str(path))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block is written or nothing.  The write lock is held from the start (``BEGIN IMMEDIATE``)."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class SqliteThread:
    """One connection and the thread that it lives in; both begin with the first use.  Use as async context manager.

    ``name``: what messages call it (``the vault``).  ``prepare`` is called in the thread with the new connection, which
    is in autocommit mode, has WAL and waits ``BUSY_MS`` for locks: for further pragmas and the schema.
    """

    def __init__(self, path: Path, *, name: str, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._name = name
        self._prepare = prepare
        self._connection: sqlite3.Connection | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name.removeprefix("the "))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of ``work`` in the thread.  A caller that is cancelled does not interrupt it.

        Raises StorageError for what SQLite or the file system refuses, and what ``work`` raises of our own errors.
        """

        def job() -> T:
            try:
                return work(self._connection or self._open())
            except PodmentorError:
                raise
            except sqlite3.DatabaseError as error:
                raise storage_error(error, self._path) from error
            except (sqlite3.Error, OSError) as error:
                raise StorageError(f"{self._name} cannot be used ({error}): look at {self._path.parent}") from error

        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    async def aclose(self) -> None:
        """Close the connection after what was asked before, and end the thread.  Safe to call twice."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        except RuntimeError:
            return  # the thread has ended already
        self._executor.shutdown(wait=False)

    def _open(self) -> sqlite3.Connection:
        ensure_private_file(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
