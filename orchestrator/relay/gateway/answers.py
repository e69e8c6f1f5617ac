"""What a container gets to see of a provider's answer.  Pure.

The key is taken out of headers and body, whichever way the stream is cut.  A rate limit whose end is far away is
reported so that the CLI gives up: Codex sleeps as long as ``Retry-After`` asks, an hour if need be, and prints nothing
of it; the error that OpenAI gives for a limit that resets later ends it at once, with the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

RETRY_AFTER_MAX: Final = 366 * 86400
"""Seconds.  What is longer is no time that anybody waits."""


class Scrubber:
    """Replaces each occurrence of ``secret`` by as many asterisks, so that announced lengths stay right.

    ``feed`` holds back only what may be the beginning of the secret: at most its length less one byte.
    """

    def __init__(self, secret: bytes) -> None:
        if not secret:
            msg = "an empty secret cannot be searched for"
            raise ValueError(msg)
        self._secret = secret
        self._mask = b"*" * len(secret)
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; what can be passed on now comes back."""
        *whole, rest = (self._pending + data).split(self._secret)
        keep = self._beginning_at_end(rest)
        cut = len(rest) - keep
        self._pending = rest[cut:]
        return self._mask.join([*whole, rest[:cut]])

    def close(self) -> bytes:
        """The stream has ended: what was held back is not the secret."""
        rest, self._pending = self._pending, b""
        return rest

    def _beginning_at_end(self, data: bytes) -> int:
        """Length of the longest end of ``data`` that is a beginning of the secret."""
        for length in range(min(len(self._secret) - 1, len(data)), 0, -1):
            if data.endswith(self._secret[:length]):
                return length
        return 0


def clean_response_headers(
    headers: Mapping[str, str], dropped: frozenset[str], secret: str | None
) -> list[tuple[str, str]]:
    """The provider's headers that a client may see: none that is ``dropped``, has the secret (None: there is none to
    keep from the client), or cannot be sent on."""
    named = {
        part.strip().lower()
        for name, value in headers.items()
        if name.lower() == "connection"
        for part in value.split(",")
    }
    return [
        (name, value)
        for name, value in headers.items()
        if name.lower() not in dropped | named
        and (secret is None or (secret not in value and secret.lower() not in name.lower()))
        and value.isprintable()
    ]


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
