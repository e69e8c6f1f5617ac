"""Wall-clock time as the journal writes it."""

from __future__ import annotations

from datetime import UTC, datetime

from orchestrator.runs.decode import rfc3339

GRACE_SECONDS = 120
"""How much longer than the wall clock a run's ways out stay open when no service looks after it."""


def now() -> str:
    """The present, RFC 3339 UTC with microseconds."""
    return rfc3339(datetime.now(UTC))


def seconds_since(ts: str) -> float:
    """Seconds from ``ts`` until now; never negative."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(ts)).total_seconds())
