"""What the contracts stand on: the shape of a contract, of an adapter and of each event; checks that several share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, Protocol, get_args

from orchestrator.contract.adapter import GatewayRoute, StreamParser
from orchestrator.contract.types import AgentResult, Credentials
from orchestrator.events import KINDS, AgentEvent, Completed, Error, ErrorReason, MessageDelta, ToolResult, ToolUse

P = ParamSpec("P")
CUT_MARK: Final = " …[cut:"
"""Where a text was cut because it was too long to be kept."""
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


class Subject(Protocol):
    """An adapter with every member that the kit looks at: any ``BaseAdapter`` that brings the documented ones."""

    @property
    def name(self) -> str: ...
    @property
    def binary(self) -> str: ...
    @property
    def supports_resume(self) -> bool: ...
    @property
    def supports_stream_json(self) -> bool: ...
    @property
    def default_allowed_egress(self) -> list[str]: ...
    @property
    def gateway(self) -> GatewayRoute | None: ...
    def gateway_env(self, base_url: str) -> dict[str, str]: ...
    def gateway_argv(self, base_url: str) -> list[str]: ...
    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]: ...
    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]: ...
    def parser(self) -> StreamParser: ...
    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult: ...
    def extract_session_id(self, evt: AgentEvent) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Contract(Generic[P]):
    """One rule.  Calling it raises AssertionError, with the reason, when it is broken."""

    number: str
    title: str
    check: Callable[P, None]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            self.check(*args, **kwargs)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{self}: {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return f"{self.number} {self.title}"


class Contracts(list[Contract[P]]):
    """A list of rules in their order; calling it with number and title makes a decorator that adds one."""

    def __call__(self, number: str, title: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
        def add(check: Callable[P, None]) -> Callable[P, None]:
            self.append(Contract(number, title, check))
            return check

        return add


def one_terminal(events: list[AgentEvent], where: str) -> None:
    """Exactly one terminal event, the last."""
    ends = [at for at, event in enumerate(events) if isinstance(event, Completed | Error)]
    assert ends == [len(events) - 1], f"{where}: {len(ends)} terminal events, at {ends} of {len(events)}"


def in_tables(events: list[AgentEvent]) -> None:
    """Every event has the shape that the tables give it."""
    found = [problem for event in events for problem in problems(event)]
    assert not found, "; ".join(found)


def calls_before_results(events: list[AgentEvent]) -> None:
    """Every tool result follows its call, no call is made twice, and a sub-agent's parent was called."""
    calls: dict[str, str | None] = {}
    for event in events:
        if isinstance(event, ToolUse):
            assert event.tool_call_id not in calls, f"{event.tool_call_id} is called twice"
            calls[event.tool_call_id] = event.parent_tool_call_id
        elif isinstance(event, ToolResult):
            assert event.tool_call_id in calls, f"{event.tool_call_id} has a result and no call"
            assert calls[event.tool_call_id] == event.parent_tool_call_id, "call and result have different parents"
        parent = event.parent_tool_call_id
        assert parent is None or parent in calls, f"the parent {parent} was never called"


def final_text_was_said(events: list[AgentEvent]) -> None:
    """The final text is what the agent's last message said, or its end."""
    last = events[-1]
    spoken = [event for event in events if isinstance(event, MessageDelta) and event.parent_tool_call_id is None]
    if not isinstance(last, Completed) or not spoken:
        return
    joined = "".join(event.text for event in spoken if event.message_id == spoken[-1].message_id)
    kept, _, cut = last.final_text.partition(CUT_MARK)
    fits = joined.startswith(kept) if cut else joined.endswith(last.final_text)
    assert fits, f"the last message says {joined[:200]!r}, the final text {last.final_text[:200]!r}"


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
