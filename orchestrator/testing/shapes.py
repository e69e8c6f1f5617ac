"""The event tables as code: which members each kind's ``data`` has, and of what type."""

from __future__ import annotations

import json
from typing import Any, get_args

from orchestrator.events import KINDS, AgentEvent, ErrorReason

_TEXT, _COUNT, _NUMBER, _FLAG, _OBJECT, _LIST = (str,), (int,), (int, float), (bool,), (dict,), (list,)
Members = dict[str, tuple[type, ...]]

REQUIRED: dict[str, Members] = {
    "session_started": {"session_id": _TEXT},
    "thinking": {"text": _TEXT},
    "message_delta": {"text": _TEXT, "message_id": _TEXT},
    "tool_use": {"tool_call_id": _TEXT, "name": _TEXT, "input": _OBJECT},
    "tool_result": {"tool_call_id": _TEXT, "content": _TEXT, "is_error": _FLAG},
    "completed": {"final_text": _TEXT, "tokens": _OBJECT, "duration_ms": _COUNT},
    "error": {"reason": _TEXT, "message": _TEXT, "details": _OBJECT},
    "status": {"phase": _TEXT},
}
OPTIONAL: dict[str, Members] = {
    "session_started": {"model": _TEXT, "cli_version": _TEXT, "tools": _LIST, "mcp_servers": _LIST},
    "completed": {"stop_reason": _TEXT, "cost_usd": _NUMBER, "turns": _COUNT},
}
PHASES: dict[str, Members] = {
    "retrying": {"attempt": _COUNT, "cause": _TEXT},
    "limit_warning": {},
    "mcp_unavailable": {"server": _TEXT, "reason": _TEXT},
    "unparsed": {"line": _COUNT, "raw": _TEXT},
    "diagnostic": {"stderr": _TEXT},
}
"""The phases that an adapter may report, and the members that each must have."""
TOKENS = {"input", "output", "cache_read", "cache_write", "reasoning"}


def problems(event: AgentEvent) -> list[str]:
    """What is wrong with an event; empty when nothing is."""
    data = event.data()
    if event.kind not in KINDS:
        return [f"there is no kind {event.kind!r}"]
    found = _missing(data, REQUIRED[event.kind])
    if event.kind == "status":
        found += _phase(data)
    else:
        optional = OPTIONAL.get(event.kind, {})
        found += [f"{name} is not in the table" for name in data if name not in REQUIRED[event.kind] | optional]
        found += _missing({**{name: types[0]() for name, types in optional.items()}, **data}, optional)
    if event.kind == "error" and data["reason"] not in get_args(ErrorReason):
        found.append(f"there is no reason {data['reason']!r}")
    if event.kind == "completed":
        found += [
            f"tokens.{name} is not a count"
            for name, count in data["tokens"].items()
            if name not in TOKENS or not _is(count, _COUNT) or count < 0
        ]
    try:
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        found.append(f"it cannot be written as JSON in UTF-8: {error}")
    return [f"{event.kind}: {problem}" for problem in found]


def _phase(data: dict[str, Any]) -> list[str]:
    members = PHASES.get(data.get("phase", ""))
    return ["an adapter does not report this phase"] if members is None else _missing(data, members)


def _missing(data: dict[str, Any], members: Members) -> list[str]:
    return [
        f"{name} must be {' or '.join(kind.__name__ for kind in types)}"
        for name, types in members.items()
        if not _is(data.get(name), types)
    ]


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (not isinstance(value, bool) or types == _FLAG)
