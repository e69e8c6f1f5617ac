"""Which credential a run uses, and who finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from orchestrator.config.models import BackendConfig

SourceName: TypeAlias = Literal["byo_subscription", "byo_key", "technical_user"]
SOURCES: tuple[SourceName, ...] = ("byo_subscription", "byo_key", "technical_user")
"""The documented order: the first that has something is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The credential that was chosen.  ``api_key`` is the real key: it goes to the relay and nowhere else."""

    source: SourceName
    api_key: str | None = field(default=None, repr=False)
    home: Path | None = None
    extra_env: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """What may be known of a user's own key.  Times are RFC 3339 UTC."""

    user_id: str
    backend: str
    fingerprint: str
    """8 hex digits: the same for the same key of the same user, and nothing of the key itself; changes when the vault's
    master key does."""
    created_at: str
    updated_at: str
    last_used_at: str | None
    """By a run; to the minute."""


class CredentialSource(Protocol):
    """One place where a credential may be found."""

    @property
    def source(self) -> SourceName:
        """Which of the documented places this is."""
        ...

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The credential, or None when this place has none for the user and backend."""
        ...

    def hint(self, backend: str) -> str | None:
        """What to do so that ``find`` has something, as an instruction; names no value.  None: nothing can be done."""
        ...


@runtime_checkable
class NotesUse(Protocol):
    """A source that wants to know when its credential is really used, and not only looked for."""

    async def used(self, user_id: str, backend: str) -> None:
        """It is used now.  Must not fail a run."""
        ...


class Credentialing(Protocol):
    """The documented chain."""

    async def resolve(self, *, user_id: str, backend: str, source: SourceName | None = None) -> Resolved:
        """The credential to use now, of the first source that has one.

        ``source``: only of this one, for a run that began with it.  Raises AuthRequiredError, UnknownBackendError, and
        what the first source that cannot be read raises: a broken credential is no reason to take another's.
        """
        ...

    async def explain(self, *, user_id: str, backend: str) -> list[dict[str, Any]]:
        """Every source in its order: {source, chosen, reason}; never a value.  Raises UnknownBackendError."""
        ...


class UserKeys(Protocol):
    """Users' own keys: written, never read back.  Every method raises VaultUnavailableError when there is no vault."""

    async def put(self, *, user_id: str, backend: str, api_key: str, actor: str) -> KeyInfo:
        """Store a key, in place of the one before.  Raises InvalidRequestError and UnknownBackendError.

        ``actor``: who does it, for the audit log.
        """
        ...

    async def get(self, *, user_id: str, backend: str) -> KeyInfo:
        """What is known of one key.  Raises NotFoundError."""
        ...

    async def list_keys(self, *, user_id: str | None) -> list[KeyInfo]:
        """What is known of a user's keys; None: of everybody's."""
        ...

    async def delete(self, *, user_id: str, backend: str, actor: str) -> None:
        """Remove a key, also one that cannot be read.  Raises NotFoundError."""
        ...
