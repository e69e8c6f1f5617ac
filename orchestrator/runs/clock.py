"""Wall-clock time as the journal writes it, and what it leaves a run."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from orchestrator.contract.types import ResourceLimits
from orchestrator.runs.stream.decoder import rfc3339

GRACE_SECONDS = 120
"""How much longer than the wall clock a run's ways out stay open when no service looks after it."""


def now() -> str:
    """The present, RFC 3339 UTC with microseconds."""
    return rfc3339(datetime.now(UTC))


def seconds_since(ts: str) -> float:
    """Seconds from ``ts`` until now; never negative."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(ts)).total_seconds())


def remaining(limits: ResourceLimits, started_at: str | None) -> float:
    """Seconds of wall clock that a run has left."""
    return limits.wall_clock_seconds - (seconds_since(started_at) if started_at else 0.0)


def ways_out_end(limits: ResourceLimits, started_at: str | None) -> float:
    """When a run's ways out are closed should no service do it, in seconds since the epoch."""
    return time.time() + remaining(limits, started_at) + GRACE_SECONDS
