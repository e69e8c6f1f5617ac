"""Bytes to lines, bounded in memory whatever comes.

Two framers, both pure and indifferent to how the bytes are cut:

* ``CriFramer`` reads the log that conmon writes with the ``k8s-file`` driver: ``<RFC 3339 time> stdout|stderr P|F
  <bytes>``; ``P`` marks a piece of a line, ``F`` its last piece (seen with conmon 2.1; pieces are up to 8 KiB).
* ``LineFramer`` cuts a CLI's output into lines.  A line over ``SOFT_LIMIT`` is not dropped and not kept whole: long
  JSON strings in it are cut and marked, so that it is still valid JSON.  The whole text stays in the run's log.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

SOFT_LIMIT = 4 * 1024 * 1024
"""Lines longer than this many bytes are shortened."""
STRING_KEEP = 1024 * 1024
"""What is kept of each JSON string in a shortened line, in bytes."""
HARD_LIMIT = 16 * 1024 * 1024
"""A line that is longer even when shortened is given up: its start is kept, as text."""
GIVEN_UP_KEEP = 4096


LOG_LINE_MAX = 1024 * 1024
"""Far above any line that conmon writes; a longer one (the zeros behind a power loss) is taken in pieces."""
_HEADER = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([PF]) ")
_NEAR = timedelta(days=1)


class LogPiece(NamedTuple):
    """What one line of conmon's log holds; ``data`` ends with a newline when the output's line ended there.

    ``torn``: conmon could not write all of it (the disk was full, the machine lost power), and perhaps nothing of what
    came next.
    """

    stream: Literal["stdout", "stderr"]
    ts: str
    data: bytes
    torn: bool = False


class CriFramer:
    """Reads conmon's log.  A line that conmon did not write (a torn disk, a foreign hand) is passed on as stderr.

    When the disk is full conmon drops what it cannot write and goes on: the beginning of one line stands there, and on
    the same line, once there is room again, a whole other one.  The two are told apart.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._ts = ""

    def feed(self, data: bytes) -> list[LogPiece]:
        """Take the next bytes of the log; the pieces that are complete."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        pieces: list[LogPiece] = []
        for line in lines:
            header = _HEADER.match(line)
            # Nearly every line is whole, and nothing in it looks like the header of another.
            if header is None or line.find(b" std", header.end() - 1) >= 0 or len(line) > LOG_LINE_MAX:
                pieces += self._long(line)
                continue
            time, stream, mark = header.groups()
            self._ts = time.decode()
            data = line[header.end() :] + b"\n" if mark == b"F" else line[header.end() :]
            pieces.append(LogPiece("stdout" if stream == b"stdout" else "stderr", self._ts, data))
        while len(self._pending) > LOG_LINE_MAX:
            pieces += self._pieces(self._pending[:LOG_LINE_MAX])
            self._pending = self._pending[LOG_LINE_MAX:]
        return pieces

    def flush(self) -> list[LogPiece]:
        """Nothing follows: a line that has no end is torn.  Zeros are what a file system leaves after a power loss."""
        rest, self._pending = self._pending.rstrip(b"\0"), b""
        if not rest:
            return []
        *whole, last = self._pieces(rest)
        return [*whole, last._replace(torn=True)]

    def _long(self, line: bytes) -> list[LogPiece]:
        starts = range(0, max(1, len(line)), LOG_LINE_MAX)
        return [piece for start in starts for piece in self._pieces(line[start : start + LOG_LINE_MAX])]

    def _pieces(self, line: bytes) -> list[LogPiece]:
        pieces: list[LogPiece] = []
        while (cut := self._next_frame(line)) is not None:
            pieces.append(self._piece(line[:cut])._replace(torn=True))
            line = line[cut:]
        return [*pieces, self._piece(line)]

    def _next_frame(self, line: bytes) -> int | None:
        """Where another frame begins within ``line``.

        Output may quote such a log.  What is quoted was written before; a frame that stands behind a torn one was
        written after it, so its time tells.
        """
        if line.count(b" std") < 2 and _HEADER.match(line):
            return None
        own = _time(line) or _time(self._ts.encode())
        for found in _HEADER.finditer(line, 1):
            at = _time(found[1])
            if at is not None and (own is None or own <= at < own + _NEAR):
                return found.start()
        return None

    def _piece(self, line: bytes) -> LogPiece:
        parts = line.split(b" ", 3)
        if len(parts) == 4 and parts[1] in {b"stdout", b"stderr"} and parts[2] in {b"P", b"F"}:
            self._ts = parts[0].decode("ascii", "replace")
            stream: Literal["stdout", "stderr"] = "stdout" if parts[1] == b"stdout" else "stderr"
            return LogPiece(stream, self._ts, parts[3] + (b"\n" if parts[2] == b"F" else b""))
        return LogPiece("stderr", self._ts, line + b"\n")


def _time(head: bytes) -> datetime | None:
    """The moment that a line of the log begins with."""
    try:
        moment = datetime.fromisoformat(head[:40].split(b" ", 1)[0].decode("ascii"))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


class LineFramer:
    """Cuts output into lines (without their newline), shortening the oversized ones."""

    def __init__(
        self, *, soft_limit: int = SOFT_LIMIT, string_keep: int = STRING_KEEP, hard_limit: int = HARD_LIMIT
    ) -> None:
        self._soft_limit = soft_limit
        self._string_keep = string_keep
        self._hard_limit = hard_limit
        self._pending = bytearray()
        self._long: _Shortener | None = None

    def push(self, data: bytes) -> list[bytes]:
        """Take the next bytes; the lines that are complete."""
        pending = self._pending or self._long is not None
        if not pending and 0 < len(data) <= self._soft_limit and data.find(b"\n") == len(data) - 1:
            return [data[:-1]]  # one whole line, as the log has nearly all of them
        lines: list[bytes] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if not self._pending and self._long is None and end - start <= self._soft_limit:
                lines.append(data[start:end])
            else:
                self._take(data[start:end])
                lines.append(self._end_line())
            start = end + 1
        if start < len(data):
            self._take(data[start:])
        return lines

    def flush(self) -> list[bytes]:
        """The last line, when the output did not end with a newline."""
        return [self._end_line()] if self._pending or self._long is not None else []

    def _take(self, data: bytes) -> None:
        if self._long is not None:
            self._long.feed(data)
            return
        self._pending += data
        if len(self._pending) > self._soft_limit:
            self._long = _Shortener(string_keep=self._string_keep, hard_limit=self._hard_limit)
            self._long.feed(bytes(self._pending))
            self._pending.clear()

    def _end_line(self) -> bytes:
        if self._long is not None:
            line, self._long = self._long.finish(), None
            return line
        line = bytes(self._pending)
        self._pending.clear()
        return line


_STRING_STOP = re.compile(rb'["\\]')


class _Shortener:
    """Copies one line of JSON, keeping at most ``string_keep`` bytes of each string; escapes are never torn."""

    def __init__(self, *, string_keep: int, hard_limit: int) -> None:
        self._string_keep = string_keep
        self._hard_limit = hard_limit
        self._out = bytearray()
        self._total = 0
        self._in_string = False
        self._escape = 0  # bytes of an escape still to come; -1: the one behind the backslash decides
        self._escape_kept = False
        self._kept = 0
        self._cut = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        if len(self._out) > self._hard_limit:
            return
        position = 0
        while position < len(data):
            if not self._in_string:
                position = self._copy_outside(data, position)
            elif self._escape:
                position = self._copy_escape(data, position)
            else:
                position = self._copy_string(data, position)

    def finish(self) -> bytes:
        if len(self._out) > self._hard_limit:
            return bytes(self._out[:GIVEN_UP_KEEP]) + f" …[cut: line of {self._total} bytes]".encode()
        return bytes(self._out)

    def _copy_outside(self, data: bytes, position: int) -> int:
        quote = data.find(b'"', position)
        end = len(data) if quote < 0 else quote + 1
        self._out += data[position:end]
        if quote >= 0:
            self._in_string, self._kept, self._cut = True, 0, 0
        return end

    def _copy_string(self, data: bytes, position: int) -> int:
        stop = _STRING_STOP.search(data, position)
        end = stop.start() if stop else len(data)
        self._keep(data[position:end])
        if stop is None:
            return end
        if stop.group() == b'"':
            if self._cut:
                self._out += f" …[cut: {self._cut} bytes, the whole is in the run's log]".encode()
            self._out += b'"'
            self._in_string = False
        else:
            self._escape, self._escape_kept = -1, self._kept < self._string_keep
            self._escaped(b"\\")
        return end + 1

    def _copy_escape(self, data: bytes, position: int) -> int:
        if self._escape == -1:
            self._escape = 4 if data[position] == ord("u") else 0
        else:
            self._escape -= 1
        self._escaped(data[position : position + 1])
        return position + 1

    def _escaped(self, byte: bytes) -> None:
        if self._escape_kept:
            self._out += byte
            self._kept += 1
        else:
            self._cut += 1

    def _keep(self, text: bytes) -> None:
        room = max(0, self._string_keep - self._kept)
        self._out += text[:room]
        self._kept += min(room, len(text))
        self._cut += max(0, len(text) - room)
