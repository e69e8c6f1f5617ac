"""The vault for the service: its tables in the service's database, on a connection and a thread of their own.

``vault_key`` has one row: the id of the master key that counts.  It changes in the same transaction as the records, so
the database alone says which key file is the right one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from orchestrator.contract.secrets import SecretInfo
from orchestrator.errors import ConflictError, SecretUnreadableError, StorageError, VaultUnavailableError
from orchestrator.system.sqlite import SqliteThread, transaction
from orchestrator.system.times import rfc3339, utc_now
from orchestrator.vault.master import KeySource
from orchestrator.vault.sealed import MasterKey, key_id_of, open_sealed, seal, unreadable

T = TypeVar("T")
log = logging.getLogger(__name__)
_USE_STEP: Final = timedelta(minutes=1)
_SCHEMA: Final = (
    """
CREATE TABLE IF NOT EXISTS secrets (
    user_id TEXT NOT NULL,
    name TEXT NOT NULL,
    sealed BLOB NOT NULL,
    fingerprint TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    last_used_at TEXT,
    PRIMARY KEY (user_id, name)
) STRICT
""",
    "CREATE TABLE IF NOT EXISTS vault_key (id INTEGER PRIMARY KEY CHECK (id = 1), key_id TEXT NOT NULL) STRICT",
)
_INFO: Final = "user_id, name, fingerprint, created_at, updated_at, last_used_at"


def _nothing(_: str) -> None:
    return


class Vault:
    """Implements ``orchestrator.contract.secrets.SecretStore``; use as an async context manager.

    ``keys`` None: only what needs no key works (list, delete), the rest raises VaultUnavailableError.
    """

    def __init__(self, path: Path, keys: KeySource | None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._keys = keys
        self._now = now
        self._database = SqliteThread(path, name="the vault", prepare=_prepare)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection and end the thread.  Safe to call twice."""
        await self._database.aclose()

    async def get(self, user_id: str, name: str) -> str | None:
        """The value of a user's secret; None: there is none.  Raises SecretUnreadableError, VaultUnavailableError."""
        return await self._run(lambda table: table.get(user_id, name))

    async def put(self, user_id: str, name: str, value: str) -> SecretInfo:
        """Store a value in the place of the one before; what may be shown of it.  Raises VaultUnavailableError."""
        return await self._run(lambda table: table.put(user_id, name, value))

    async def delete(self, user_id: str, name: str) -> bool:
        """Remove a secret; False: there was none."""
        return await self._run(lambda table: table.delete(user_id, name))

    async def list_secrets(self, *, user_id: str | None = None, prefix: str = "") -> list[SecretInfo]:
        """What may be shown of the secrets of a user (None: of all), whose names begin with ``prefix``."""
        return await self._run(lambda table: table.infos(user_id, prefix))

    async def touch(self, user_id: str, name: str) -> None:
        """Note a use; a database that is busy must not keep a run from starting."""
        try:
            await self._run(lambda table: table.touch(user_id, name))
        except StorageError as error:
            log.debug("the last use of a secret is not noted: %s", error.message)

    async def settle(self) -> None:
        """Finish, at the start, what a crash in a rotation has left."""
        await self._run(lambda table: table.settle())

    async def check_key(self) -> str:
        """The id of the master key in use."""
        return await self._run(lambda table: table.check_key())

    async def key_id(self) -> str | None:
        """The id of the master key that what is stored was sealed with."""
        return await self._run(lambda table: table.key_id())

    async def unreadable(self) -> list[SecretUnreadableError]:
        """The records that do not open."""
        return await self._run(lambda table: table.unreadable())

    async def rotate(self, new_master: MasterKey, *, on_step: Callable[[str], None] = _nothing) -> int:
        """Seal everything anew under ``new_master``; how many records.  See ``SecretTable.rotate``."""
        return await self._run(lambda table: table.rotate(new_master, on_step))

    async def discard_all(self) -> int:
        """Remove every secret and forget the master key."""
        return await self._run(lambda table: table.discard_all())

    async def _run(self, work: Callable[[SecretTable], T]) -> T:
        return await self._database.run(lambda db: work(SecretTable(db, self._keys, self._now)))


def _prepare(connection: sqlite3.Connection) -> None:
    """What a new connection needs: commits that survive a power failure, deletes that leave no bytes, the tables."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    for statement in _SCHEMA:
        connection.execute(statement)


class SecretTable:
    """The records, on a connection that ``prepare`` has had.  sqlite3.Error is left to the caller."""

    def __init__(self, db: sqlite3.Connection, keys: KeySource | None, now: Callable[[], datetime]) -> None:
        self._db = db
        self._keys = keys
        self._now = now

    def key_id(self) -> str | None:
        """The master key that counts; None: nothing has been sealed yet."""
        row = self._db.execute("SELECT key_id FROM vault_key").fetchone()
        return None if row is None else str(row[0])

    def settle(self) -> None:
        """Finish a rotation that was cut short, as far as the files go."""
        with transaction(self._db):
            if self._keys is not None and (key_id := self.key_id()) is not None:
                self._keys.settle(key_id)

    def check_key(self) -> str:
        """The id of the master key in use.  Raises VaultUnavailableError when it is not there or is another one."""
        return self._master().key_id

    def get(self, user_id: str, name: str) -> str | None:
        """The value, opened; None: there is no such record."""
        row = self._db.execute("SELECT sealed FROM secrets WHERE user_id = ? AND name = ?", (user_id, name)).fetchone()
        return None if row is None else self._open(row[0], user_id, name)

    def put(self, user_id: str, name: str, value: str) -> SecretInfo:
        """Seal the value and write its record, under the key that counts; its last use is forgotten."""
        at = _seconds(self._now())
        with transaction(self._db):
            master = self._master()
            self._set_key_id(master.key_id)
            self._db.execute(
                "INSERT INTO secrets (user_id, name, sealed, fingerprint, created_at, updated_at)"
                " VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO UPDATE SET sealed = excluded.sealed,"
                " fingerprint = excluded.fingerprint, updated_at = excluded.updated_at, last_used_at = NULL",
                (
                    user_id,
                    name,
                    seal(master, value, user_id=user_id, name=name),
                    master.fingerprint(user_id, value),
                    at,
                ),
            )
            row = self._db.execute(
                f"SELECT {_INFO} FROM secrets WHERE user_id = ? AND name = ?",  # noqa: S608 - our own constant
                (user_id, name),
            ).fetchone()
        return _info(row)

    def delete(self, user_id: str, name: str) -> bool:
        """Remove a record; False: there was none."""
        done = self._db.execute("DELETE FROM secrets WHERE user_id = ? AND name = ?", (user_id, name))
        return done.rowcount > 0

    def infos(self, user_id: str | None, prefix: str) -> list[SecretInfo]:
        """The records without their values, by user and name."""
        rows = self._db.execute(
            f"SELECT {_INFO} FROM secrets WHERE (?1 IS NULL OR user_id = ?1)"  # noqa: S608 - our own constant
            " AND substr(name, 1, length(?2)) = ?2 ORDER BY user_id, name",
            (user_id, prefix),
        )
        return [_info(row) for row in rows]

    def touch(self, user_id: str, name: str) -> None:
        """Note a use, at most once a minute."""
        now = self._now()
        self._db.execute(
            "UPDATE secrets SET last_used_at = ?1 WHERE user_id = ?2 AND name = ?3"
            " AND (last_used_at IS NULL OR last_used_at <= ?4)",
            (_seconds(now), user_id, name, _seconds(now - _USE_STEP)),
        )

    def unreadable(self) -> list[SecretUnreadableError]:
        """The records that do not open, each with its owner, name and reason."""
        return list(self._read_all()[1])

    def rotate(self, new: MasterKey, on_step: Callable[[str], None]) -> int:
        """Seal everything anew under ``new``, in one transaction; the number of records.

        ``on_step`` is called with how far it is: ``staged``, ``sealed``, ``committed``, ``settled``.  Raises
        ConflictError when a record cannot be read: nothing has changed then.
        """
        assert self._keys is not None
        with transaction(self._db):
            old = self._master()
            self._keys.settle(old.key_id)
            values, broken = self._read_all()
            if broken:
                raise ConflictError(
                    f"{len(broken)} secrets cannot be read, so nothing was changed: set them again or delete them",
                    unreadable=[error.details for error in broken],
                )
            self._keys.stage(new)
            on_step("staged")
            for (user_id, name), value in values.items():
                self._db.execute(
                    "UPDATE secrets SET sealed = ?, fingerprint = ? WHERE user_id = ? AND name = ?",
                    (seal(new, value, user_id=user_id, name=name), new.fingerprint(user_id, value), user_id, name),
                )
            self._set_key_id(new.key_id)
            on_step("sealed")
            if self._read_all() != (values, []):
                raise StorageError("the secrets sealed anew do not read as before; nothing was changed")
        on_step("committed")
        self.settle()
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing sealed with the old key stays in the files
        on_step("settled")
        return len(values)

    def discard_all(self) -> int:
        """Remove every secret, read or not, and forget the master key; how many."""
        with transaction(self._db):
            count = self._db.execute("DELETE FROM secrets").rowcount
            self._db.execute("DELETE FROM vault_key")
        return count

    def _read_all(self) -> tuple[dict[tuple[str, str], str], list[SecretUnreadableError]]:
        values: dict[tuple[str, str], str] = {}
        broken: list[SecretUnreadableError] = []
        for user_id, name, record in self._db.execute("SELECT user_id, name, sealed FROM secrets").fetchall():
            try:
                values[user_id, name] = self._open(record, user_id, name)
            except SecretUnreadableError as error:
                error.details["user_id"] = user_id
                broken.append(error)
        return values, broken

    def _open(self, record: object, user_id: str, name: str) -> str:
        if not isinstance(record, bytes) or not (key_id := key_id_of(record)):
            raise unreadable(name, "its record is damaged")
        master = self._source().by_id(key_id)
        if master is None:
            raise unreadable(name, f"it was sealed with the master key {key_id}, which {self._source().place} is not")
        return open_sealed(master, record, user_id=user_id, name=name)

    def _master(self) -> MasterKey:
        """The key to seal with: the one that the database names, else the first there is."""
        keys = self._source()
        if (key_id := self.key_id()) is None:
            return keys.current()
        if (found := keys.by_id(key_id)) is None:
            raise VaultUnavailableError(
                f"the vault was sealed with the master key {key_id}, and {keys.place} has another one: bring the right"
                " key back, or give up what is stored (podmentor vault init --discard-secrets)"
            )
        return found

    def _source(self) -> KeySource:
        if self._keys is None:
            raise VaultUnavailableError("no vault is configured: `podmentor vault init` makes one")
        return self._keys

    def _set_key_id(self, key_id: str) -> None:
        self._db.execute(
            "INSERT INTO vault_key (id, key_id) VALUES (1, ?) ON CONFLICT DO UPDATE SET key_id = excluded.key_id",
            (key_id,),
        )


def _seconds(moment: datetime) -> str:
    return rfc3339(moment, "seconds")


def _info(row: tuple[Any, ...]) -> SecretInfo:
    return SecretInfo(
        user_id=row[0], name=row[1], fingerprint=row[2], created_at=row[3], updated_at=row[4], last_used_at=row[5]
    )
