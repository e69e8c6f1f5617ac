"""The common part of parsers for CLIs that print one JSON object per line.

What is common: framing, decoding, the rule that nothing vanishes (a line that is not understood becomes
``status: unparsed``; a line that has lost bytes keeps the run from counting as completed), and the rule that a run has
exactly one terminal event, the last one.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from orchestrator.adapterkit.failures import bytes_lost
from orchestrator.adapterkit.members import as_text
from orchestrator.events import AgentEvent, Completed, Error, Status
from orchestrator.framing import LineFramer

RAW_KEEP = 2000
"""Characters of a line that is shown as unparsed."""

MCP_LINE = "podmentor.mcp"
"""The type of a line ``{type, server, error}`` that an image's own script adds to the output of a CLI that does not
report which of its MCP servers could not be started or reached."""

DEPTH_MAX = 200
"""Objects and lists within one another.  What is deeper could not be passed on: writing it, here or at a client, ends
at a limit of recursion that nobody can foresee."""
UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a line of an unforeseen form may raise: it is not understood."""

_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode(text: str) -> Any:
    """The value of a line of JSON, such that it can be written as JSON in UTF-8 again.

    Numbers that JSON cannot hold (NaN, infinities) and more than ``DEPTH_MAX`` levels raise ValueError; half of a
    surrogate pair becomes U+FFFD.
    """
    value = _value(text)
    if len(text) > DEPTH_MAX and text.count("{") + text.count("[") > DEPTH_MAX:
        _check_depth(value)
    return _whole_pairs(value) if "\\u" in text and _LONE_SURROGATE.search(text) else value


def _value(text: str) -> Any:
    """The value that is all of ``text``; a line that has whitespace around it takes the longer way."""
    if text.startswith("{"):
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number out of range")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
"""One for all lines: ``json.loads`` with hooks makes one for each."""


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError("nested too deeply")


def _whole_pairs(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_pairs(item) for item in value]
    if isinstance(value, dict):
        return {_whole_pairs(name): _whole_pairs(item) for name, item in value.items()}
    return value


class JsonLinesParser(ABC):
    """A ``StreamParser``.  Subclasses read objects and say how a run that printed no end has ended."""

    def __init__(self) -> None:
        self._framer = LineFramer()
        self._line_no = 0
        self._ended = False
        self.ignored_lines = 0
        """Lines behind the one that ended the run: they change nothing any more, but somebody should know."""
        self._holed_lines = 0

    def feed(self, data: bytes) -> list[AgentEvent]:
        """Take the next bytes of stdout."""
        events: list[AgentEvent] = []
        for line in self._framer.push(data):
            self._read(line, events)
        return events

    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        """The process has ended; the terminal event comes out, unless it has already."""
        events: list[AgentEvent] = []
        for line in self._framer.flush():
            self._read(line, events)
        if not self._ended:
            self._add(self.on_close(exit_code, stderr_tail), events)
        return events

    @abstractmethod
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line.  An error of those in ``UNREADABLE`` means: not understood."""

    @abstractmethod
    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """What comes out at the end when no line was the terminal one; the last event must be terminal."""

    def _read(self, line: bytes, events: list[AgentEvent]) -> None:
        """Add the events of a line."""
        self._line_no += 1
        if not line.strip():
            return
        if self._ended:
            self.ignored_lines += 1
            return
        text = line.decode("utf-8", "replace")
        try:
            obj = decode(text)
            if not isinstance(obj, dict):
                found: Sequence[AgentEvent] = (self._unparsed(text),)
            elif obj.get("type") == MCP_LINE:
                found = (mcp_unavailable(as_text(obj["server"]), as_text(obj["error"])),)
            else:
                found = self.on_object(obj)
        except UNREADABLE:
            found = (self._unparsed(text),)
        self._add(found, events)

    def _add(self, found: Sequence[AgentEvent], events: list[AgentEvent]) -> None:
        """What is found, up to a terminal event."""
        for event in found:
            events.append(bytes_lost(event, self._holed_lines) if self._holed_lines else event)
            if isinstance(event, (Completed, Error)):
                self._ended = True
                break

    def _unparsed(self, text: str) -> Status:
        # JSON has no NUL bytes: in a line of ours they stand where other bytes were before
        if "\0" in text and text.lstrip("\0")[:1] in {"{", ""}:
            self._holed_lines += 1
        raw = text if len(text) <= RAW_KEEP else f"{text[:RAW_KEEP]} …[cut: {len(text)} characters]"
        return Status(phase="unparsed", info={"line": self._line_no, "raw": raw})


def mcp_unavailable(server: str, reason: str) -> Status:
    """An MCP server that the agent has to do without; ``reason``: in the CLI's words."""
    return Status(phase="mcp_unavailable", info={"server": server, "reason": reason})
