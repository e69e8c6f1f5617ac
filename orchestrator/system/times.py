"""Wall-clock times as text: RFC 3339 in UTC, ending in ``Z``, so that texts of one precision sort as the times do.

Events have microseconds, the audit log milliseconds, records of tokens and secrets seconds.  Pure, but for the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["seconds", "milliseconds", "microseconds"]


def utc_now() -> datetime:
    """The present, with its time zone (UTC)."""
    return datetime.now(UTC)


def now(precision: Precision = "microseconds") -> str:
    """The present, as ``2026-01-31T12:00:00.000000Z``."""
    return rfc3339(utc_now(), precision)


def rfc3339(moment: datetime, precision: Precision = "microseconds") -> str:
    """``moment``, which knows its time zone, in UTC; what is finer than ``precision`` is cut off, not rounded."""
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """The moment that ``text`` names; one without a time zone is taken for UTC.  Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def seconds_since(text: str) -> float:
    """Seconds from ``text`` until now; never negative.  Raises ValueError."""
    return max(0.0, (utc_now() - parse(text)).total_seconds())
