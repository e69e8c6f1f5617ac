"""The record of who did what with secrets."""

from __future__ import annotations

from typing import Protocol


class Audit(Protocol):
    """Append-only.  An event is a name such as ``credential.used`` and plain facts; a value of a secret is no fact."""

    async def record(self, event: str, **facts: str | int | bool | None) -> None:
        """Write one event, on disk when this returns.  Raises StorageError: what cannot be recorded must not happen."""
        ...
