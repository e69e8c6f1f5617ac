"""Takes a secret out of a stream of bytes, whichever way the stream is cut.  Pure."""

from __future__ import annotations

from collections.abc import Mapping


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
