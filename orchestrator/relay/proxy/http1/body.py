"""How long a body is, and where in a stream of bytes it ends.  Pure.

``feed`` takes bytes and gives back those that belong to the body and may be passed on, as they are; what stands behind
its end is dropped, since a connection carries one request and one answer.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHUNK_LINE: Final = 256
MAX_TRAILERS: Final = 8 * 1024

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t -~]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n")


class BodyError(Exception):
    """The body is not what it says to be."""


class Body:
    """Base: a body that has ended before it began."""

    __slots__ = ("done",)

    def __init__(self, *, done: bool = True) -> None:
        self.done = done

    def feed(self, data: bytes) -> bytes:
        """The part of ``data`` that may be passed on now.  Raises: BodyError."""
        del data
        return b""

    def fields(self) -> list[str]:
        """The header fields that give its length."""
        return []

    def clean_end(self) -> bool:
        """Whether the stream may end here."""
        return self.done

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self), *self.fields()))


class NoBody(Body):
    """No body, and no header field that says so."""


class Length(Body):
    """So many bytes.  ``announced``: the length in the header, where it is not that of the bytes to come."""

    __slots__ = ("_left", "size")

    def __init__(self, size: int, *, announced: int | None = None) -> None:
        super().__init__(done=size == 0)
        self.size = size if announced is None else announced
        self._left = size

    def feed(self, data: bytes) -> bytes:
        """What is left of the length; the rest of ``data`` is dropped."""
        passed = data[: self._left]
        self._left -= len(passed)
        self.done = self._left == 0
        return passed

    def fields(self) -> list[str]:
        """Content-Length as announced."""
        return [f"Content-Length: {self.size}"]


class UntilEnd(Body):
    """Everything until the connection ends."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(done=False)

    def feed(self, data: bytes) -> bytes:
        """Everything, as it is."""
        return data

    def clean_end(self) -> bool:
        """Always: the end of the connection is the end of the body."""
        return True


class Chunked(Body):
    """Chunks, each checked before it is passed on."""

    __slots__ = ("_left", "_pending", "_trailers")

    def __init__(self) -> None:
        super().__init__(done=False)
        self._pending = b""
        self._left = -1
        """Bytes of the present chunk that are still to come, its CR LF included; -1: between chunks."""
        self._trailers = -1
        """Bytes of trailers so far; -1: the last chunk has not come."""

    def feed(self, data: bytes) -> bytes:
        """The chunks as far as they are complete lines and data."""
        data, self._pending = self._pending + data, b""
        position = 0
        while position < len(data) and not self.done:
            step = self._data(data, position) if self._left >= 0 else self._line(data, position)
            if step == 0:
                break
            position += step
        if not self.done:
            self._pending = data[position:]
        return data[:position]

    def _data(self, data: bytes, position: int) -> int:
        """How many bytes of the present chunk can be passed on."""
        if self._left > 2:
            step = min(self._left - 2, len(data) - position)
            self._left -= step
            return step
        if len(data) - position < 2:
            if data[position:] != b"\r"[: len(data) - position]:
                raise BodyError("a chunk is longer than it says")
            return 0
        if data[position : position + 2] != b"\r\n":
            raise BodyError("a chunk is longer than it says")
        self._left = -1
        return 2

    def _line(self, data: bytes, position: int) -> int:
        end = data.find(b"\n", position) + 1
        size = (end or len(data)) - position
        if size > (MAX_CHUNK_LINE if self._trailers < 0 else MAX_TRAILERS - self._trailers):
            raise BodyError("a line between chunks is too long")
        if not end:
            return 0
        line = data[position:end]
        if self._trailers >= 0:
            self._trailers += size
            if line == b"\r\n":
                self.done = True
            elif not _TRAILER.fullmatch(line):
                raise BodyError("a trailer cannot be read")
            return size
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            raise BodyError("a chunk's size cannot be read")
        length = int(found[1], 16)
        if length:
            self._left = length + 2
        else:
            self._trailers = 0
        return size

    def fields(self) -> list[str]:
        """Transfer-Encoding: the chunks go on as they came."""
        return ["Transfer-Encoding: chunked"]
