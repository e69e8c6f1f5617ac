"""What the bench needs around it: a service of its own with one backend, and a provider that follows a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.bench.results import Usage
from orchestrator.config.models import Paths
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.changes import ChangeService
from orchestrator.contract.runs import RunService


class SeenKey(Protocol):
    """A request that the provider got."""

    @property
    def key(self) -> str | None:
        """The key that came with it."""
        ...


class ScriptedService(Protocol):
    """The scripted provider, as far as the bench steers it."""

    @property
    def requests(self) -> Sequence[SeenKey]:
        """Every request so far."""
        ...

    async def reached(self, gate: str, *, timeout: float = 30.0) -> None:
        """Wait until an answer is held at this gate.  Raises TimeoutError."""
        ...

    async def release(self, gate: str, *, times: int | None = None) -> None:
        """Let it go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One backend, ready to be tried.  Everything on it belongs to the bench and is removed afterwards."""

    adapter: BaseAdapter
    runs: RunService
    changes: ChangeService
    provider: ScriptedService
    spoken: Callable[[str], str]
    """The text that a scenario has the model say."""
    usage: Usage
    """What it counts for the scenario ``text``."""
    key: str = field(repr=False)
    """The provider's key, which must appear nowhere but at the provider."""
    paths: Paths
    repo: Path
    """A small repo; a run works on an overlay of it."""
    leftovers: Callable[[], Awaitable[list[str]]]
    """What finished runs have left behind; empty when all is well."""

    @property
    def backend(self) -> str:
        """Its name."""
        return self.adapter.name
