"""Which credential a run uses, and who finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from orchestrator.config.models import BackendConfig

LinkName: TypeAlias = Literal["byo_subscription", "byo_key", "technical_user"]
LINKS: tuple[LinkName, ...] = ("byo_subscription", "byo_key", "technical_user")
"""The documented order: the first that has something is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The credential that was chosen.  ``api_key`` is the real key: it goes to the relay and nowhere else."""

    link: LinkName
    api_key: str | None = field(default=None, repr=False)
    home: Path | None = None
    extra_env: dict[str, str] = field(default_factory=dict, repr=False)


class CredentialLink(Protocol):
    """One place where a credential may be found."""

    @property
    def link(self) -> LinkName:
        """Which of the documented places this is."""
        ...

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The credential, or None when this place has none for the user and backend."""
        ...

    def hint(self, backend: str) -> str:
        """What to do so that ``find`` has something, as an instruction; names no value."""
        ...


class Credentialing(Protocol):
    """The documented chain."""

    async def resolve(self, *, user_id: str, backend: str) -> Resolved:
        """The first link that has something.  Raises AuthRequiredError and UnknownBackendError."""
        ...

    async def explain(self, *, user_id: str, backend: str) -> list[dict[str, Any]]:
        """Every link in its order: {link, chosen, reason}; never a value.  Raises UnknownBackendError."""
        ...
