"""What both halves of the conformance kit stand on: the shape of a contract, of an adapter, and common checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, ParamSpec, Protocol

from orchestrator.contract.adapter import GatewayRoute, StreamParser
from orchestrator.contract.types import AgentResult, Credentials
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, ToolResult, ToolUse
from orchestrator.testing.shapes import problems

P = ParamSpec("P")
CUT_MARK: Final = " …[cut:"
"""Where a text was cut because it was too long to be kept."""


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
