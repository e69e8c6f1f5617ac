"""The parts of HTTP/1 heads that requests and answers have in common.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from orchestrator.relay.proxy.http1.body import Body, Chunked, Length

MAX_FIELDS: Final = 100

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "content-length",
    }
)
"""Written anew, or meant for the next hop only."""
LOOKALIKES: Final = frozenset({"content_length", "transfer_encoding"})
"""Some servers take these for the names with a dash."""

_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
"""One way only to read a line: with optional blanks in the pattern, a line of blanks would take hours to refuse."""
_LENGTH = re.compile(r"[0-9]{1,15}")

Fields = tuple[tuple[str, str], ...]


class WireError(Exception):
    """What was read is not understood or not allowed.  ``status``: of the answer; the message quotes nothing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class LineReader:
    """Bytes in, the lines of one head out: complete when an empty line has been seen."""

    def __init__(self, limit: int, status: int) -> None:
        self._limit = limit
        self._status = status
        self._buffer = bytearray()
        self._used = 0
        self.lines: list[bytes] = []
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes.  Raises: WireError."""
        self._buffer += data
        while not self.complete:
            end = self._buffer.find(b"\n")
            size = len(self._buffer) if end < 0 else end + 1
            if self._used + size > self._limit:
                raise WireError(431 if self._status == 400 else self._status, "the head is too large")
            if end < 0:
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._used += end + 1
            if not line.endswith(b"\r"):
                raise WireError(self._status, "a line does not end with CR LF")
            self._take(line[:-1])

    def _take(self, line: bytes) -> None:
        if line:
            self.lines.append(line)
            if len(self.lines) > MAX_FIELDS + 1:
                raise WireError(431 if self._status == 400 else self._status, "there are too many header fields")
        elif self.lines:
            self.complete = True
        else:
            raise WireError(self._status, "the head begins with an empty line")

    @property
    def rest(self) -> bytes:
        """What has been read behind the head."""
        return bytes(self._buffer)


def read_fields(lines: Iterable[bytes], status: int) -> Fields:
    """Header fields.  Raises: WireError with ``status``."""
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise WireError(status, "a header field cannot be read")
        name = found[1].decode()
        if name.lower() in LOOKALIKES:
            raise WireError(status, "a header field looks like one that gives a body's length")
        fields.append((name, found[2].strip(b" \t").decode("latin-1")))
    return tuple(fields)


def values(fields: Fields, wanted: str) -> list[str]:
    """All values of one field (by its name in small letters)."""
    return [value for name, value in fields if name.lower() == wanted]


def end_to_end(fields: Fields, *, also: tuple[str, ...] = ()) -> Fields:
    """Without what concerns one connection only, by its name or because ``Connection`` says so."""
    named = {part.strip().lower() for value in values(fields, "connection") for part in value.split(",")}
    dropped = HOP_BY_HOP | named | set(also)
    return tuple(
        (name, value)
        for name, value in fields
        if (lower := name.lower()) not in dropped and not lower.startswith("proxy-")
    )


def framing(fields: Fields, status: int) -> Body | None:
    """The length that the fields give; None: they give none.  Raises: WireError with ``status``."""
    codings, lengths = values(fields, "transfer-encoding"), values(fields, "content-length")
    if codings:
        if lengths:
            raise WireError(status, "there are both Transfer-Encoding and Content-Length")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise WireError(status, "the only Transfer-Encoding that is passed on is chunked, once")
        return Chunked()
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise WireError(status, "Content-Length must be one number, once")
    return Length(int(lengths[0]))


def render(lines: list[str], fields: Fields, body: Body, *, close: bool = True) -> bytes:
    """A whole head.  ``close``: the connection ends behind it."""
    lines = [*lines, *(f"{name}: {value}" for name, value in fields), *body.fields()]
    if close:
        lines.append("Connection: close")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")
