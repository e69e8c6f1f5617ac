"""The encrypted store of secrets, as the parts that need one see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """What may be known of a stored secret: everything but its value.  Times are RFC 3339 UTC."""

    user_id: str
    name: str
    fingerprint: str
    """Tells two values of one user apart and says nothing about them; changes when the master key does."""
    created_at: str
    updated_at: str
    last_used_at: str | None
    """To the minute."""


class SecretStore(Protocol):
    """One value per (user, name).  Every method may raise StorageError and VaultUnavailableError."""

    async def get(self, user_id: str, name: str) -> str | None:
        """The value; None: there is none.  Raises SecretUnreadableError."""
        ...

    async def put(self, user_id: str, name: str, value: str) -> SecretInfo:
        """Store, in place of what was there."""
        ...

    async def delete(self, user_id: str, name: str) -> bool:
        """Remove, whether it can be read or not; False: there was none."""
        ...

    async def list_secrets(self, *, user_id: str | None = None, prefix: str = "") -> list[SecretInfo]:
        """What there is, of one user or of all, with names that begin with ``prefix``."""
        ...

    async def touch(self, user_id: str, name: str) -> None:
        """Note that it was used now; best effort."""
        ...
