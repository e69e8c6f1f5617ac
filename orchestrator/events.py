"""The eight kinds of event: a closed union of frozen records, and the envelope that the journal gives each.

This file imports nothing of ours.  Adapters produce ``AgentEvent`` values; only the journal makes ``EventRecord``
values, since only it numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "session_started", "thinking", "message_delta", "tool_use", "tool_result", "completed", "error", "status"
]
Source: TypeAlias = Literal["agent", "orchestrator"]
KINDS: tuple[Kind, ...] = (
    "session_started",
    "thinking",
    "message_delta",
    "tool_use",
    "tool_result",
    "completed",
    "error",
    "status",
)

ErrorReason: TypeAlias = Literal[
    "auth_required",
    "auth_rejected",
    "credit_exhausted",
    "rate_limited",
    "provider_unavailable",
    "cli_failed",
    "cli_not_installed",
    "resume_failed",
    "timeout",
    "idle_timeout",
    "start_timeout",
    "memory_exceeded",
    "disk_exceeded",
    "output_exceeded",
    "cancelled",
    "image_missing",
    "sandbox_failed",
    "lost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token counts of one run.  None: the CLI does not report this one."""

    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def to_dict(self) -> dict[str, int]:
        """The counts that are known."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    kind: ClassVar[Kind]
    parent_tool_call_id: str | None = None

    def data(self) -> dict[str, Any]:
        """The ``data`` member of the envelope: every field but the envelope's own; optional ones left out when None."""
        out: dict[str, Any] = {}
        event: Any = type(self)
        for name, optional in _members(event):
            value = getattr(self, name)
            if value is None and optional:
                continue
            out[name] = value.to_dict() if isinstance(value, Tokens) else value
        return out


@cache
def _members(event: type[Any]) -> tuple[tuple[str, bool], ...]:
    """The fields that ``data`` has, and whether each is optional."""
    return tuple((f.name, f.default is None) for f in fields(event) if f.name != "parent_tool_call_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(_Event):
    """The CLI has begun a session (or resumed one): ``session_id`` is the CLI's own, needed to resume."""

    kind: ClassVar[Kind] = "session_started"
    session_id: str
    model: str | None = None
    cli_version: str | None = None
    tools: list[str] | None = None
    mcp_servers: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking(_Event):
    """A piece of the model's reasoning, as far as the provider shows it."""

    kind: ClassVar[Kind] = "thinking"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta(_Event):
    """A piece of the answer.  The pieces of one ``message_id``, joined, are that message."""

    kind: ClassVar[Kind] = "message_delta"
    text: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse(_Event):
    """The agent calls one of its own tools."""

    kind: ClassVar[Kind] = "tool_use"
    tool_call_id: str
    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult(_Event):
    """What the tool gave back, as text."""

    kind: ClassVar[Kind] = "tool_result"
    tool_call_id: str
    content: str
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(_Event):
    """The run ended well.  Ends the stream."""

    kind: ClassVar[Kind] = "completed"
    final_text: str
    tokens: Tokens
    duration_ms: int
    stop_reason: str | None = None
    cost_usd: float | None = None
    turns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(_Event):
    """The run failed.  Ends the stream.  ``message`` tells a person what happened and what to do."""

    kind: ClassVar[Kind] = "error"
    reason: ErrorReason
    message: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(_Event):
    """What the orchestrator (or a parser, for what fits nowhere else) has to say.

    ``phase`` is one of: queued {position, waiting_for?}, starting, running, retrying {attempt, delay_ms?, cause},
    egress_denied {host, port, reason, count}, egress_allowed {host, port},
    limit_warning {limit, limit_bytes, used_bytes, or both in seconds; of the provider: state, limit?, resets_at?,
    utilization?, overage?}, mcp_unavailable {server, reason}, unparsed {line, raw}, diagnostic {stderr},
    output_lost {message}, heartbeat (never journalled).  ``info`` holds the members in braces and is merged into
    ``data``.
    """

    kind: ClassVar[Kind] = "status"
    phase: str
    info: dict[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """``phase`` and the members that go with it, flat."""
        return {"phase": self.phase, **self.info}


AgentEvent: TypeAlias = SessionStarted | Thinking | MessageDelta | ToolUse | ToolResult | Completed | Error | Status
TerminalEvent: TypeAlias = Completed | Error


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One journalled event: the envelope that every client sees."""

    seq: int
    ts: str
    run_id: str
    subagent_id: str
    backend: str
    kind: Kind
    source: Source
    parent_tool_call_id: str | None
    data: Mapping[str, Any]

    @property
    def terminal(self) -> bool:
        """Whether this event ends its run."""
        return self.kind in {"completed", "error"}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the event tables in docs/api.md."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
