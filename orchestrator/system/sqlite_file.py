"""The database's file, made for its owner alone.

SQLite itself would make it readable for others.  A file that is there must not be opened beside SQLite: closing any
descriptor of it takes away every lock that this process has on it, after which another process takes itself for the
last user, folds the write-ahead log away, and what is written here from then on is lost.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from orchestrator.errors import StorageError


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
