"""How a run proves to the provider who pays: what was found, and what a place to look in must bring."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pydantic import SecretStr

from orchestrator.config.models import BackendConfig

Link: TypeAlias = Literal["byo_subscription", "byo_key", "technical_user"]
LINKS: tuple[Link, ...] = ("byo_subscription", "byo_key", "technical_user")
"""The order in which they are asked; the first that has something wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The credential of one run.

    ``home`` is set for a subscription alone (it holds the CLI's own login, and there is no key); ``api_key`` is the
    real key, for the gateway only.  Nothing secret shows in ``repr``.
    """

    link: Link
    api_key: SecretStr | None = None
    home: Path | None = None
    extra_env: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """Why a link was or was not chosen; safe to show."""

    link: Link
    chosen: bool
    reason: str


class CredentialLink(Protocol):
    """One place where a credential may be found."""

    @property
    def link(self) -> Link:
        """Which of the documented places this is."""
        ...

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The credential, or None when this place has none for the user and backend."""
        ...

    def hint(self, backend: str) -> str:
        """What to do so that ``find`` has something, as an instruction; names no value."""
        ...


class CredentialResolver(Protocol):
    """The whole chain."""

    async def resolve(self, *, user_id: str, backend: str) -> Resolved:
        """The first credential found.  Raises AuthRequiredError (with what to do) and UnknownBackendError."""
        ...

    async def explain(self, *, user_id: str, backend: str) -> list[LinkReport]:
        """Every link in its order, with the reason.  Raises UnknownBackendError."""
        ...
