"""Recordings of what a CLI has really printed, and the events that are expected of each.

A recording is a folder with ``stdout.bin`` (the bytes), ``meta.json`` (``exit_code``, ``stderr_tail``, and ``argv`` to
say how it was made) and ``events.jsonl`` (one event per line; reviewed by a person, see ``write_golden``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from orchestrator.contract.adapter import StreamParser
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    Tokens,
    ToolResult,
    ToolUse,
)


class Parses(Protocol):
    """The part of an adapter that this module needs."""

    def parser(self) -> StreamParser:
        """A new parser for one run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of a CLI."""

    name: str
    stdout: bytes
    exit_code: int | None = 0
    """128+n for signal n, None when it is not known."""
    stderr_tail: str = ""
    expected: list[dict[str, Any]] | None = None
    """What ``events.jsonl`` holds; None when there is none yet."""

    @property
    def lines(self) -> list[bytes]:
        """Stdout in lines, each with its newline."""
        return _lines(self.stdout)


def load(folder: Path) -> Recording:
    """The recording in ``folder``.  Raises OSError and ValueError when it is not complete."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    golden = folder / "events.jsonl"
    expected = None
    if golden.exists():
        expected = [json.loads(line) for line in golden.read_text(encoding="utf-8").split("\n") if line]
    return Recording(
        name=folder.name,
        stdout=(folder / "stdout.bin").read_bytes(),
        exit_code=meta["exit_code"],
        stderr_tail=meta.get("stderr_tail", ""),
        expected=expected,
    )


def load_all(folder: Path) -> list[Recording]:
    """Every recording below ``folder``, by name."""
    return [load(meta.parent) for meta in sorted(folder.glob("*/meta.json"))]


def play(adapter: Parses, recording: Recording, chunks: Iterable[bytes] | None = None) -> list[AgentEvent]:
    """The events of a whole run; ``chunks``: stdout in another cutting."""
    parser = adapter.parser()
    events: list[AgentEvent] = []
    for chunk in chunks if chunks is not None else [recording.stdout]:
        events += parser.feed(chunk)
    return events + parser.close(recording.exit_code, recording.stderr_tail)


def to_dict(event: AgentEvent) -> dict[str, Any]:
    """An event as ``events.jsonl`` has it."""
    out: dict[str, Any] = {"kind": event.kind}
    if event.parent_tool_call_id is not None:
        out["parent_tool_call_id"] = event.parent_tool_call_id
    return {**out, "data": event.data()}


KINDS: Final[dict[str, type[AgentEvent]]] = {
    event.kind: event
    for event in (SessionStarted, Thinking, MessageDelta, ToolUse, ToolResult, Completed, Error, Status)
}


def from_dict(line: Mapping[str, Any]) -> AgentEvent:
    """The event of a line of ``events.jsonl``, or of the API.  Raises TypeError and KeyError when it is none."""
    kind, data = KINDS[line["kind"]], dict(line["data"])
    parent = line.get("parent_tool_call_id")
    if kind is Status:
        return Status(phase=data.pop("phase"), info=data, parent_tool_call_id=parent)
    if "tokens" in data:
        data["tokens"] = Tokens(**data["tokens"])
    return kind(**data, parent_tool_call_id=parent)


def write_golden(adapter: Parses, folder: Path) -> None:
    """Write ``events.jsonl`` for the recording in ``folder``.  Read the result line by line before you keep it: from
    then on it is what the parser is held to."""
    lines = [json.dumps(to_dict(event), ensure_ascii=False) for event in play(adapter, load(folder))]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _lines(data: bytes) -> list[bytes]:
    """``splitlines`` would also cut at a carriage return."""
    pieces = data.split(b"\n")
    return [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
