"""The documented mapping (C8) of what older releases print."""

from orchestrator.events import (
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
from tests.adapters.opencode.lines import run

START = {"type": "session.start", "session_id": "old-1"}


def test_c8_every_row_of_the_table() -> None:
    events = run(
        START,
        {"type": "reasoning", "text": "Hm."},
        {"type": "message", "role": "assistant", "text": "First."},
        {"type": "tool.call", "tool_call_id": "c1", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool.output", "tool_call_id": "c1", "content": ["a", "b"], "is_error": True},
        {"type": "message", "role": "user", "text": "Not the agent's."},
        {"type": "message", "id": "m2", "role": "assistant", "content": [{"type": "text", "text": "Last."}]},
        {"type": "session.complete", "tokens": {"input": 5, "output": 6}, "cost": 0.5, "stop_reason": "end_turn"},
    )
    assert events == [
        SessionStarted(session_id="old-1"),
        Thinking(text="Hm."),
        MessageDelta(text="First.", message_id="line-3"),
        ToolUse(tool_call_id="c1", name="bash", input={"command": "ls"}),
        ToolResult(tool_call_id="c1", content='["a", "b"]', is_error=True),
        MessageDelta(text="Last.", message_id="m2"),
        Completed(
            final_text="Last.", tokens=Tokens(input=5, output=6), duration_ms=0, stop_reason="end_turn", cost_usd=0.5
        ),
    ]


def test_c8_an_error_has_its_message_and_the_rest_as_details() -> None:
    last = run(START, {"type": "error", "message": "Too Many Requests", "code": "slow_down"})[-1]
    assert last == Error(reason="rate_limited", message="Too Many Requests", details={"code": "slow_down"})


def test_a_second_start_says_nothing() -> None:
    assert [event for event in run(START, START) if isinstance(event, SessionStarted)] == [
        SessionStarted(session_id="old-1")
    ]


def test_a_row_without_its_members_is_shown() -> None:
    for odd in (
        {"type": "session.start"},
        {"type": "tool.call", "id": "x"},
        {"type": "message"},
        {"type": "session.complete", "tokens": 5},
    ):
        assert [event.phase for event in run(odd) if isinstance(event, Status)] == ["unparsed"]
