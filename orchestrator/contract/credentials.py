"""Which credential a run uses, and who finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

LinkName: TypeAlias = Literal["byo_subscription", "byo_key", "technical_user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The credential that was chosen.  ``api_key`` is the real key: it goes to the relay and nowhere else."""

    link: LinkName
    api_key: str | None = field(default=None, repr=False)
    home: Path | None = None
    extra_env: dict[str, str] = field(default_factory=dict, repr=False)


class Credentialing(Protocol):
    """The documented chain."""

    async def resolve(self, *, user_id: str, backend: str) -> Resolved:
        """The first link that has something.  Raises AuthRequiredError."""
        ...

    async def explain(self, *, user_id: str, backend: str) -> list[dict[str, Any]]:
        """Every link, whether it was chosen, and why (not); never a value."""
        ...
