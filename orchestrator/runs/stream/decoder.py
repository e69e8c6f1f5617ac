"""The log of a sandbox to the events of a run: pure and deterministic, so that a restarted service, reading the log
from its start again, gets the very same events with the same time stamps.

The terminal event is held back until ``close``: what the CLI still says on stderr comes before it, so that it is the
last event whatever the order in which the streams were written.
"""

from __future__ import annotations

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
            out += self._piece(piece)
        return out

    def _piece(self, piece: LogPiece) -> list[Stamped]:
        self._ts = utc(piece.ts) if piece.ts else self._ts
        data = piece.data if not piece.torn or piece.data.endswith(b"\n") else piece.data + b"\n"
        self.output_bytes += len(piece.data)
        out: list[Stamped] = []
        if piece.stream == "stdout":
            self.has_output = True
            out += self._hold(self._parser.feed(data))
        else:
            self._stderr_tail = (self._stderr_tail + data)[-STDERR_TAIL:]
            for line in self._stderr.push(data):
                out += self._diagnostic(line)
        if piece.torn:
            out += self._lost()
        return out

    def close(self, exit_code: int | None) -> list[Stamped]:
        """The sandbox has ended and the log is complete; the last event is terminal."""
        out: list[Stamped] = []
        for piece in self._log.flush():
            out += self._piece(piece)
        for line in self._stderr.flush():
            out += self._diagnostic(line)
        tail = self._stderr_tail.decode("utf-8", "replace")
        out += self._hold(self._parser.close(exit_code, tail))
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

    def _hold(self, events: list[AgentEvent]) -> list[Stamped]:
        out: list[Stamped] = []
        for event in events:
            if not isinstance(event, Completed | Error):
                out.append(Stamped(self._ts, event))
            elif self.terminal is None:
                self.terminal = event
        return out

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
    try:
        return rfc3339(parse(ts))
    except ValueError:
        return ts
