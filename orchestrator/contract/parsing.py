"""The common part of parsers for CLIs that print one JSON object per line.

What is common: framing, decoding, the rule that nothing vanishes (a line that is not understood becomes
``status: unparsed``), and the rule that a run has exactly one terminal event, the last one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from orchestrator.events import AgentEvent, Completed, Error, Status
from orchestrator.framing import LineFramer

RAW_KEEP = 2000
"""Characters of a line that is shown as unparsed."""


class JsonLinesParser(ABC):
    """A ``StreamParser``.  Subclasses read objects and say how a run that printed no end has ended."""

    def __init__(self) -> None:
        self._framer = LineFramer()
        self._line_no = 0
        self._ended = False

    def feed(self, data: bytes) -> list[AgentEvent]:
        """Take the next bytes of stdout."""
        events: list[AgentEvent] = []
        for line in self._framer.push(data):
            events += self._read(line)
        return events

    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        """The process has ended; the terminal event comes out, unless it has already."""
        events: list[AgentEvent] = []
        for line in self._framer.flush():
            events += self._read(line)
        if not self._ended:
            events += self._until_terminal(self.on_close(exit_code, stderr_tail))
        return events

    @abstractmethod
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line.  KeyError, TypeError, ValueError, AttributeError and IndexError mean: not understood."""

    @abstractmethod
    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """What comes out at the end when no line was the terminal one; the last event must be terminal."""

    def _read(self, line: bytes) -> list[AgentEvent]:
        self._line_no += 1
        if self._ended or not line.strip():
            return []
        text = line.decode("utf-8", "replace")
        try:
            obj = json.loads(text)
            events = self.on_object(obj) if isinstance(obj, dict) else [self._unparsed(text)]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            events = [self._unparsed(text)]
        return self._until_terminal(events)

    def _until_terminal(self, events: Sequence[AgentEvent]) -> list[AgentEvent]:
        kept: list[AgentEvent] = []
        for event in events:
            kept.append(event)
            if isinstance(event, Completed | Error):
                self._ended = True
                break
        return kept

    def _unparsed(self, text: str) -> Status:
        raw = text if len(text) <= RAW_KEEP else f"{text[:RAW_KEEP]} …[cut: {len(text)} characters]"
        return Status(phase="unparsed", info={"line": self._line_no, "raw": raw})
