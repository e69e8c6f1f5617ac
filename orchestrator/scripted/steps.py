"""What a scripted answer is made of, and what a script knows of the conversation.  No protocol is known here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

ToolKind: TypeAlias = Literal["shell", "read", "write", "edit", "agent", "unknown"]
"""Tools by what they do; each protocol's CLI has its own name for them (see ``tools``)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A block of the answer, streamed in pieces of ``size`` characters."""

    text: str
    size: int = 12


@dataclass(frozen=True, slots=True)
class Thinking:
    """A block of visible reasoning."""

    text: str
    size: int = 16


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Ask the CLI to run a tool.  Arguments: shell {command}, read {path}, write {path, content}, edit {path, old,
    new} (whole lines, as some CLIs only know patches), agent {prompt}; paths are relative to the CLI's working
    directory."""

    tool: ToolKind
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the answer for this reason; without it the reason follows from the steps."""

    reason: Literal["end_turn", "max_tokens", "refusal"]


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with this HTTP status instead; must be the only step.  ``retry_after`` in seconds."""

    status: int
    message: str | None = None
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """Report an error inside the stream, behind a complete block, and end it.  Without a stream: HTTP 529."""

    message: str = "Overloaded"


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop the connection: behind a complete block, or (``torn``) in the middle of one."""

    torn: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait here until the gate of this name lets the stream through."""

    gate: str


Step: TypeAlias = Text | Thinking | ToolCall | Stop | Fail | Break | Cut | Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request, as a script sees it."""

    prompts: tuple[str, ...]
    """What the user has said, oldest first, without what the CLI puts around it."""
    rounds: int = 0
    """How often tools have been run since the newest prompt."""
    results: tuple[str, ...] = ()
    """What they gave back since the newest prompt, as text."""
    failed: tuple[bool, ...] = ()
    """For each of ``results``: whether the CLI called it an error."""
    tools: tuple[str, ...] = ()
    """Names of the tools offered; empty for a side request, such as one for a title."""
    cwd: str = "/workspace"

    @property
    def prompt(self) -> str:
        """The newest prompt."""
        return self.prompts[-1] if self.prompts else ""
