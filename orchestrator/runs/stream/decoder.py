"""The log of a sandbox to the events of a run: pure and deterministic, so that a restarted service, reading the log
from its start again, gets the very same events with the same time stamps.

The terminal event is held back until ``close``: what the CLI still says on stderr comes before it, so that it is the
last event whatever the order in which the streams were written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from orchestrator.contract.adapter import StreamParser
from orchestrator.events import AgentEvent, Completed, Error, Status, TerminalEvent
from orchestrator.framing import CriFramer, LineFramer, LogPiece
from orchestrator.system.times import parse, rfc3339

DIAGNOSTICS_MAX = 200
"""Lines of stderr that become events; all of them stay in the log."""
DIAGNOSTIC_KEEP = 2000
"""Characters of a line of stderr that an event shows."""
GAPS_MAX = 20
"""Gaps in the output that become events."""
STDERR_TAIL = 8192
"""Bytes of stderr that the parser is handed at the end."""


class Stamped(NamedTuple):
    """An event and the time (RFC 3339 UTC) at which conmon got the bytes that complete it."""

    ts: str
    event: AgentEvent


class LogDecoder:
    """Feeds a parser from conmon's log."""

    def __init__(self, parser: StreamParser) -> None:
        self._parser = parser
        self._log = CriFramer()
        self._stderr = LineFramer()
        self._stderr_tail = b""
        self._diagnostics = 0
        self._gaps = 0
        self._ts = ""
        self.output_bytes = 0
        """Bytes of stdout and stderr so far."""
        self.has_output = False
        """Whether the CLI has printed anything on stdout."""
        self.terminal: TerminalEvent | None = None
        """The parser's terminal event, once it has given one."""

    def feed(self, data: bytes) -> list[Stamped]:
        """Take the next bytes of the log."""
        out: list[Stamped] = []
        for piece in self._log.feed(data):
            self._piece(piece, out)
        return out

    def _piece(self, piece: LogPiece, out: list[Stamped]) -> None:
        """Add the events of a piece."""
        stream, ts, data, torn = piece
        if ts:
            self._ts = utc(ts)
        self.output_bytes += len(data)
        if torn and not data.endswith(b"\n"):
            data += b"\n"
        if stream == "stdout":
            self.has_output = True
            self._hold(self._parser.feed(data), out)
        else:
            self._stderr_tail = (self._stderr_tail + data)[-STDERR_TAIL:]
            for line in self._stderr.push(data):
                out += self._diagnostic(line)
        if torn:
            out += self._lost()

    def close(self, exit_code: int | None) -> list[Stamped]:
        """The sandbox has ended and the log is complete; the last event is terminal."""
        out: list[Stamped] = []
        for piece in self._log.flush():
            self._piece(piece, out)
        for line in self._stderr.flush():
            out += self._diagnostic(line)
        tail = self._stderr_tail.decode("utf-8", "replace")
        self._hold(self._parser.close(exit_code, tail), out)
        if ignored := getattr(self._parser, "ignored_lines", 0):
            text = f"{ignored} further lines behind the end of the answer are in the run's log only"
            out.append(Stamped(self._ts, Status(phase="diagnostic", info={"stderr": text})))
        if self.terminal is None:
            self.terminal = Error(
                reason="lost",
                message="The agent's output has no end that could be read; the raw log of the run has all of it.",
                details={"exit_code": exit_code},
            )
        return [*out, Stamped(self._ts, self.terminal)]

    def _hold(self, events: list[AgentEvent], out: list[Stamped]) -> None:
        """Add the events with their time; the terminal one is held back."""
        for event in events:
            if not isinstance(event, (Completed, Error)):
                out.append(Stamped(self._ts, event))
            elif self.terminal is None:
                self.terminal = event

    def _lost(self) -> list[Stamped]:
        """Reported where it happened; what is missing is nowhere else either."""
        self._gaps += 1
        if self._gaps > GAPS_MAX:
            return []
        message = (
            "Output is missing here: it could not be written to the run's log (a full disk, or the machine went down)."
        )
        return [Stamped(self._ts, Status(phase="output_lost", info={"message": message}))]

    def _diagnostic(self, line: bytes) -> list[Stamped]:
        if not line.strip() or self._diagnostics > DIAGNOSTICS_MAX:
            return []
        self._diagnostics += 1
        text = line.decode("utf-8", "replace")
        if self._diagnostics > DIAGNOSTICS_MAX:
            text = "further lines of stderr are in the run's log only"
        elif len(text) > DIAGNOSTIC_KEEP:
            text = f"{text[:DIAGNOSTIC_KEEP]} …[cut: {len(text)} characters]"
        return [Stamped(self._ts, Status(phase="diagnostic", info={"stderr": text}))]


def utc(ts: str) -> str:
    """conmon's time stamp (local offset, nanoseconds) as RFC 3339 UTC, microseconds; the text itself if it is none."""
    if ts[19:20] == "." and ts[20:29].isdecimal():  # as conmon writes it: only the seconds need to be understood
        seconds = _utc_seconds(ts[:19], ts[29:])
        return ts if seconds is None else f"{seconds}.{ts[20:26]}Z"
    try:
        return rfc3339(parse(ts))
    except (ValueError, OverflowError):
        return ts


@lru_cache(maxsize=64)
def _utc_seconds(local: str, offset: str) -> str | None:
    """A time without its fraction as UTC, without the Z; None when it is none.  Most lines share theirs."""
    try:
        return rfc3339(parse(local + offset))[:19]
    except (ValueError, OverflowError):
        return None
