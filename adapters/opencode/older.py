"""What releases before 1.0 print: flat lines, whose types have a dot, and a line that ends the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from adapters.opencode.failures import Failure, reason_of
from adapters.opencode.messages import is_countable
from orchestrator.adapterkit.kept_text import KeptText
from orchestrator.adapterkit.members import as_object, as_text, text_or_none
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Thinking,
    Tokens,
    ToolResult,
    ToolUse,
)

OLDER_TYPES: Final = frozenset({"session.start", "message", "tool.call", "tool.output", "session.complete"})
"""``reasoning`` and ``error`` have the same names today, and other members."""


def read_older(obj: dict[str, Any], text: KeptText, line_id: str, *, opened: bool) -> Sequence[AgentEvent]:
    """Events of one such line.  ``text`` is kept from message to message; ``opened``: a session has begun."""
    match obj["type"]:
        case "session.start":
            model, version = obj.get("model"), obj.get("version")
            started = SessionStarted(
                session_id=as_text(_either(obj, "session_id", "sessionID")),
                model=text_or_none(model),
                cli_version=text_or_none(version),
            )
            return () if opened else [started]
        case "reasoning":
            said = as_text(obj["text"])
            return [Thinking(text=said)] if said else ()
        case "message":
            return _message(obj, text, line_id)
        case "tool.call":
            call_id = as_text(_either(obj, "tool_call_id", "id"))
            return [ToolUse(tool_call_id=call_id, name=as_text(obj["name"]), input=as_object(obj["input"]))]
        case "tool.output":
            call_id, content = as_text(_either(obj, "tool_call_id", "id")), _either(obj, "content", "output")
            shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            return [ToolResult(tool_call_id=call_id, content=shown, is_error=obj.get("is_error") is True)]
        case "session.complete":
            return [_complete(obj, text)]
        case _:
            return [_error(obj)]


def _message(obj: dict[str, Any], text: KeptText, line_id: str) -> Sequence[AgentEvent]:
    role = obj.get("role", "assistant")
    if role in {"user", "system"}:
        return ()
    if role != "assistant":
        raise ValueError("an unknown role")
    content = _either(obj, "text", "content")
    if isinstance(content, list):
        content = "".join(as_text(part["text"]) for part in content if part.get("type") == "text")
    said, name = as_text(content), obj.get("id")
    message_id = name if isinstance(name, str) else line_id
    if not said:
        return ()
    text.add(message_id, said)
    return [MessageDelta(text=said, message_id=message_id)]


def _complete(obj: dict[str, Any], text: KeptText) -> Completed:
    given = as_object(obj.get("tokens") or {})
    counts = {name: max(0, round(count)) for name, count in given.items() if is_countable(count)}
    cost, reason, duration = _first_of(obj, "cost_usd", "cost"), obj.get("stop_reason"), obj.get("duration_ms")
    return Completed(
        final_text=text.join(),
        tokens=Tokens(
            input=counts.get("input", 0),
            output=counts.get("output", 0),
            cache_read=counts.get("cache_read"),
            cache_write=counts.get("cache_write"),
            reasoning=counts.get("reasoning"),
        ),
        duration_ms=max(0, round(duration)) if is_countable(duration) else 0,
        stop_reason=text_or_none(reason),
        cost_usd=cost if is_countable(cost) else None,
    )


def _error(obj: dict[str, Any]) -> Error:
    status = _first_of(obj, "status", "status_code", "statusCode")
    failure = Failure(text=as_text(obj["message"]), status=round(status) if is_countable(status) else None)
    details = {name: value for name, value in obj.items() if name not in {"type", "message"}}
    return Error(reason=reason_of(failure), message=failure.text, details=details)


def _first_of(obj: dict[str, Any], *names: str) -> Any:
    return next((obj[name] for name in names if name in obj), None)


def _either(obj: dict[str, Any], *names: str) -> Any:
    """The first of these members that is there.  Raises KeyError when none is."""
    for name in names:
        if name in obj:
            return obj[name]
    raise KeyError(names[0])
