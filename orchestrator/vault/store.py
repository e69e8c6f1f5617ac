"""The vault for the service: ``table`` on a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self, TypeVar

from orchestrator.contract.secrets import SecretInfo
from orchestrator.errors import SecretUnreadableError, StorageError
from orchestrator.system.sqlite import SqliteThread
from orchestrator.system.times import utc_now
from orchestrator.vault.master import KeySource
from orchestrator.vault.sealed import MasterKey
from orchestrator.vault.table import SecretTable, prepare

T = TypeVar("T")
log = logging.getLogger(__name__)


def _nothing(_: str) -> None:
    return


class Vault:
    """Implements ``orchestrator.contract.secrets.SecretStore``; use as an async context manager.

    ``keys`` None: only what needs no key works (list, delete), the rest raises VaultUnavailableError.
    """

    def __init__(self, path: Path, keys: KeySource | None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._keys = keys
        self._now = now
        self._database = SqliteThread(path, name="the vault", prepare=prepare)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection and end the thread.  Safe to call twice."""
        await self._database.aclose()

    async def get(self, user_id: str, name: str) -> str | None:
        """The value; None: there is none."""
        return await self._run(lambda table: table.get(user_id, name))

    async def put(self, user_id: str, name: str, value: str) -> SecretInfo:
        """Store a value."""
        return await self._run(lambda table: table.put(user_id, name, value))

    async def delete(self, user_id: str, name: str) -> bool:
        """Remove a secret; False: there was none."""
        return await self._run(lambda table: table.delete(user_id, name))

    async def list_secrets(self, *, user_id: str | None = None, prefix: str = "") -> list[SecretInfo]:
        """What there is."""
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
