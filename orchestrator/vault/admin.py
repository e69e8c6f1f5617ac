"""What the operator does with the vault: make it, look at it, rotate its key, keep secrets for the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.config.environment import VaultPlace
from orchestrator.contract.audit import Audit
from orchestrator.contract.secrets import SecretInfo
from orchestrator.errors import (
    ConfigError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    SecretUnreadableError,
    VaultUnavailableError,
)
from orchestrator.vault.master import KeySource, write_key
from orchestrator.vault.sealed import MasterKey
from orchestrator.vault.store import Vault

CONFIG_USER: Final = "_config"
"""Owner of the configuration's secrets; no user can have this name, since a user's begins with a letter or digit."""
_PREFIX: Final = "config/"
_MAX_CHARS: Final = 4096


def config_secret_name(name: str) -> str:
    """Under which name ``${secret:NAME}`` is stored."""
    return f"{_PREFIX}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultAdmin:
    """The operator's side.  ``actor`` is who is written into the audit log."""

    place: VaultPlace
    vault: Vault
    audit: Audit
    actor: str

    async def init(self, *, discard: bool) -> str:
        """Make the key file; its key's id.  ``discard``: give up secrets that were sealed with a key that is lost.

        Raises ConflictError when there is a good key already, or secrets that the new one could not open.
        """
        await self.vault.settle()
        there = self.place.source == "environment" or await asyncio.to_thread(self.place.key_file.exists)
        before = await self.vault.key_id()
        if there and (before is None or await self._opens()):
            raise ConflictError(f"there is a key in {self.place} already; `podmentor vault rotate` replaces it")
        if before is not None:
            count = len(await self.vault.list_secrets())
            if not discard:
                raise ConflictError(
                    f"{count} secrets are stored under the master key {before}, which {self.place} is not: bring that "
                    "key back, or add --discard-secrets to give them up"
                )
            await self.audit.record("vault.discarded", actor=self.actor, key_id=before, secrets=count)
            await self.vault.discard_all()
        if there:
            return await self.vault.check_key()  # what it could not open is gone
        key = MasterKey.new()
        await self.audit.record("vault.initialised", actor=self.actor, key_id=key.key_id)
        await asyncio.to_thread(write_key, self.place.key_file, key)
        return key.key_id

    async def _opens(self) -> bool:
        try:
            await self.vault.check_key()
        except VaultUnavailableError:
            return False
        return True

    async def status(self) -> dict[str, Any]:
        """{configured, source, place, key_id, error, secrets, unreadable, rotation_unfinished}; never a value."""
        keys = await asyncio.to_thread(KeySource.find, self.place)
        found: dict[str, Any] = {
            "configured": keys is not None,
            "source": self.place.source,
            "place": str(self.place),
            "key_id": None,
            "error": None,
            "secrets": len(await self.vault.list_secrets()),
            "unreadable": [],
            "rotation_unfinished": keys is not None and await asyncio.to_thread(lambda: keys.unsettled),
        }
        if keys is None:
            return found
        try:
            found["key_id"] = await self.vault.check_key()
        except VaultUnavailableError as error:
            found["error"] = error.message
        try:
            found["unreadable"] = [
                {"user_id": broken.details["user_id"], "name": broken.details["name"], "error": broken.message}
                for broken in await self.vault.unreadable()
            ]
        except VaultUnavailableError as error:
            found["error"] = error.message
        return found

    async def rotate(self, *, on_step: Callable[[str], None]) -> dict[str, Any]:
        """Put a new master key in the place of the old one; {key_id, secrets}.  Raises ConflictError."""
        keys = await asyncio.to_thread(KeySource.find, self.place)
        if keys is None:
            raise VaultUnavailableError("no vault is configured: `podmentor vault init` makes one")
        new = keys.next() if self.place.source == "environment" else MasterKey.new()
        if new.key_id == await self.vault.check_key():
            raise ConflictError(f"${self.place.next_variable} holds the key that is in use already")
        await self.audit.record("vault.rotating", actor=self.actor, key_id=new.key_id)
        count = await self.vault.rotate(new, on_step=on_step)
        await self.audit.note("vault.rotated", actor=self.actor, key_id=new.key_id, secrets=count)
        return {"key_id": new.key_id, "secrets": count}

    async def put(self, name: str, value: str) -> SecretInfo:
        """Store a secret for ``${secret:NAME}``.  Raises InvalidRequestError, which does not quote the value."""
        if not 0 < len(value) <= _MAX_CHARS or not value.isprintable():
            raise InvalidRequestError(f"a secret is one line of 1 to {_MAX_CHARS} printable characters")
        await self.audit.record("secret.set", actor=self.actor, user_id=CONFIG_USER, name=name)
        return await self.vault.put(CONFIG_USER, config_secret_name(name), value)

    async def delete(self, name: str) -> None:
        """Remove one.  Raises NotFoundError."""
        if name not in {one["name"] for one in await self.list_secrets()}:
            raise NotFoundError(f"there is no secret {name!r}: `podmentor vault list` shows them")
        await self.audit.record("secret.deleted", actor=self.actor, user_id=CONFIG_USER, name=name)
        await self.vault.delete(CONFIG_USER, config_secret_name(name))

    async def list_secrets(self) -> list[dict[str, Any]]:
        """The configuration's secrets: {name, fingerprint, created_at, updated_at, last_used_at}."""
        found = await self.vault.list_secrets(user_id=CONFIG_USER, prefix=_PREFIX)
        return [
            {
                "name": one.name.removeprefix(_PREFIX),
                "fingerprint": one.fingerprint,
                "created_at": one.created_at,
                "updated_at": one.updated_at,
                "last_used_at": one.last_used_at,
            }
            for one in found
        ]

    async def values(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the named secrets that there are, for the service's start.  Raises ConfigError for trouble."""
        found: dict[str, str] = {}
        for name in names:
            try:
                await self.vault.check_key()
                value = await self.vault.get(CONFIG_USER, config_secret_name(name))
            except (VaultUnavailableError, SecretUnreadableError) as error:
                raise ConfigError(f"${{secret:{name}}} cannot be resolved: {error.message}") from None
            if value is not None:
                await self.audit.record("secret.used", actor=self.actor, user_id=CONFIG_USER, name=name)
                await self.vault.touch(CONFIG_USER, config_secret_name(name))
                found[name] = value
        return found
