"""The audit log in memory."""

from __future__ import annotations

from typing import Any


class FakeAudit:
    """Implements ``Audit``; ``failure`` is raised instead of recording."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    async def record(self, event: str, **facts: str | int | bool | None) -> None:
        if self.failure is not None:
            raise self.failure
        self.events.append({"event": event, **facts})
