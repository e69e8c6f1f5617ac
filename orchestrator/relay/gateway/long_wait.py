"""A rate limit whose end is far away, said so that the CLI gives up instead of waiting.  Pure.

Codex sleeps as long as ``Retry-After`` asks, an hour if need be, and prints nothing of it.  The error that OpenAI gives
for a limit that resets later ends it at once, with the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

RETRY_AFTER_MAX: Final = 366 * 86400
"""Seconds.  What is longer is no time that anybody waits."""


def reset_in(status: int, headers: Mapping[str, str], *, longest: float | None, now: float) -> int | None:
    """The seconds until a rate limit resets, when that is longer than ``longest``; None for every other answer.

    ``headers``: names in any case, as ``CIMultiDict`` has them.  ``longest``: of the route; None: any wait is the CLI's
    own affair.  ``now``: seconds since the epoch.
    """
    if status != 429 or longest is None:
        return None
    seconds = _seconds(headers.get("Retry-After", "").strip(), now)
    return seconds if seconds is not None and seconds > longest else None


def usage_limit_reached(seconds: int, *, now: float) -> dict[str, Any]:
    """The body of such an answer."""
    message = f"podmentor gateway: the provider's rate limit is reached; it resets in {seconds} s"
    return {
        "error": {
            "type": "usage_limit_reached",
            "message": message,
            "resets_in_seconds": seconds,
            "resets_at": int(now) + seconds,
        }
    }


def _seconds(value: str, now: float) -> int | None:
    """``Retry-After``: seconds, or a date."""
    if value.isascii() and value.isdecimal():
        return min(int(value[:12]), RETRY_AFTER_MAX)
    try:
        return min(round(parsedate_to_datetime(value).timestamp() - now), RETRY_AFTER_MAX)
    except (ValueError, OverflowError):
        return None
