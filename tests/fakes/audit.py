"""The audit log in memory."""

from __future__ import annotations

from typing import Any

from orchestrator.contract.audit import EVENTS, Fact
from orchestrator.errors import StorageError


class FakeAudit:
    """Implements ``Audit``, for events and facts of the table only; ``failure`` is raised instead of recording."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.missed: list[dict[str, Any]] = []
        """What was only noted while there was a ``failure``."""
        self.failure: Exception | None = None

    async def record(self, event: str, **facts: Fact) -> None:
        assert set(facts) <= {"actor", *EVENTS[event].facts}, f"{event} has no such facts: {sorted(facts)}"
        if self.failure is not None:
            raise self.failure
        self.events.append({"event": event, **facts})

    async def note(self, event: str, **facts: Fact) -> None:
        try:
            await self.record(event, **facts)
        except StorageError:
            self.missed.append({"event": event, **facts})

    def of(self, pattern: str) -> list[dict[str, Any]]:
        """Those whose name begins so."""
        return [one for one in self.events if one["event"].startswith(pattern)]
