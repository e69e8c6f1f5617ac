from typing import Any

import pytest

from orchestrator.contract.adapter import Resumed
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
from tests.adapters.codex.lines import STARTED, THREAD, TURN, done, error, failed, item, retry, run, said

OTHER = "7b0cf0f5-6c6c-4d55-9f0e-0e9d6a3b8f11"


def of(kind: type, events: list[AgentEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def notices(events: list[AgentEvent]) -> list[str]:
    return [event.info["stderr"] for event in of(Status, events) if event.phase == "diagnostic"]


def test_c7_a_run_in_todays_shape() -> None:
    assert run(STARTED, TURN, item("reasoning", text="hm"), said("Hello.", "item_1"), done(cached_input_tokens=3)) == [
        SessionStarted(session_id=THREAD),
        Thinking(text="hm"),
        MessageDelta(text="Hello.", message_id="item_1"),
        Completed(final_text="Hello.", tokens=Tokens(input=10, output=2, cache_read=3), duration_ms=0),
    ]


def test_c7_the_final_text_is_the_latest_message() -> None:
    assert run(STARTED, said("First."), said("Last.", "item_1"), done())[-1].data()["final_text"] == "Last."


def test_c7_the_older_end_is_copied() -> None:
    end = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 2}, "cost": 0.5, "stop_reason": "x"}
    last = run(STARTED, {"type": "item.agent_message", "item_id": "i", "content": "Hi."}, end)[-1]
    assert last == Completed(
        final_text="Hi.", tokens=Tokens(input=1, output=2), duration_ms=0, cost_usd=0.5, stop_reason="x"
    )


def test_c7_an_older_error_ends_the_run_with_its_members_as_details() -> None:
    for line in (error("no way", code="x"), {"type": "error", "error": "no way", "code": "x"}):
        last = run(STARTED, line, exit_code=0)[-1]
        assert isinstance(last, Error)
        assert last.reason == "cli_failed"
        assert "no way" in last.message
        assert last.details == {"exit_code": 0, "code": "x", "cli_message": "no way"}


# --- the thread that should go on ---------------------------------------------------------------------------------


def test_another_thread_than_the_one_asked_for_is_a_failed_resume() -> None:
    events = run(STARTED, TURN, said("Who are you?"), done(), resumed=Resumed(session_id=OTHER, tokens=ZERO))
    (only,) = events
    assert isinstance(only, Error)
    assert only.reason == "resume_failed"
    assert only.details == {"asked": OTHER, "thread_id": THREAD}


def test_the_same_thread_goes_on() -> None:
    events = run(STARTED, said("Yes."), done(), resumed=Resumed(session_id=THREAD.upper(), tokens=ZERO))
    assert [event.kind for event in events] == ["session_started", "message_delta", "completed"]


def test_a_thread_without_a_record_is_a_failed_resume() -> None:
    stderr = f"Error: thread/resume: thread/resume failed: no rollout found for thread id {OTHER} (code -32600)\n"
    (only,) = run(exit_code=1, stderr=stderr)
    assert isinstance(only, Error)
    assert only.reason == "resume_failed"


ZERO = Tokens(input=0, output=0)


def test_tokens_are_those_of_the_run_where_the_cli_counts_the_thread() -> None:
    before = Tokens(input=1200, output=45, cache_read=300, cache_write=0, reasoning=7)
    end = done(
        input_tokens=3600,
        output_tokens=135,
        cached_input_tokens=900,
        cache_write_input_tokens=0,
        reasoning_output_tokens=21,
    )
    last = run(STARTED, said("Yes."), end, resumed=Resumed(session_id=THREAD, tokens=before))[-1]
    assert isinstance(last, Completed)
    assert last.tokens == Tokens(input=2400, output=90, cache_read=600, cache_write=0, reasoning=14)


# --- errors that are none, and those that are ---------------------------------------------------------------------


def test_a_retry_is_told_and_ends_nothing() -> None:
    events = run(STARTED, TURN, retry(1, "unexpected status 503 Service Unavailable: x"), retry(2), said("Hi."), done())
    retries = [event.info for event in of(Status, events)]
    assert retries == [
        {"attempt": 1, "cause": "unexpected status 503 Service Unavailable: x"},
        {"attempt": 2, "cause": "stream disconnected before completion: closed"},
    ]
    assert isinstance(events[-1], Completed)


def test_the_cause_of_a_retry_may_be_missing_or_have_lines_and_brackets() -> None:
    events = run(STARTED, error("Reconnecting... 1/4"), error("Reconnecting... 2/4 (a (b)\nc)"), exit_code=1)
    assert [event.info["cause"] for event in of(Status, events)] == ["the answer broke off", "a (b)\nc"]


def test_a_warning_before_the_turn_is_a_notice() -> None:
    events = run(STARTED, item("error", message="Model metadata not found."), TURN, said("Hi.", "item_1"), done())
    assert notices(events) == ["Model metadata not found."]
    assert isinstance(events[-1], Completed)


def test_an_error_after_which_it_goes_on_was_a_notice() -> None:
    events = run(STARTED, error("odd"), error("odder"), said("Hi."), retry(1), done())
    assert [event.kind for event in events] == [
        "session_started",
        "status",
        "status",
        "message_delta",
        "status",
        "completed",
    ]
    assert notices(events) == ["odd", "odder"]


def test_an_error_and_the_failed_turn_are_one_end() -> None:
    events = run(STARTED, retry(1), error("unexpected status 401 x"), failed("unexpected status 401 x"), exit_code=1)
    assert [event.kind for event in events] == ["session_started", "status", "error"]
    last = events[-1]
    assert isinstance(last, Error)
    assert last.reason == "auth_rejected"
    assert last.details["http_status"] == 401
    assert last.details["last_retry"]["attempt"] == 1


@pytest.mark.parametrize(
    "end",
    [{"type": "turn.failed"}, {"type": "turn.failed", "error": None}, {"type": "turn.failed", "error": "so it is"}],
)
def test_a_turn_may_fail_without_words(end: dict[str, Any]) -> None:
    assert [event.kind for event in run(STARTED, end)] == ["session_started", "error"]


# --- a broken stream ----------------------------------------------------------------------------------------------


def test_what_a_new_attempt_repeats_is_not_told_again() -> None:
    events = run(
        STARTED,
        item("reasoning", text="hm"),
        said("This ans", "item_1"),
        retry(1),
        item("reasoning", "item_2", text="hm"),
        said("This answer is wh", "item_3"),
        retry(2),
        item("reasoning", "item_4", text="hm"),
        said("This answer is whole.", "item_5"),
        done(),
    )
    assert [event.text for event in of(Thinking, events)] == ["hm"]
    assert of(MessageDelta, events) == [
        MessageDelta(text="This ans", message_id="item_1"),
        MessageDelta(text="wer is wh", message_id="item_1"),
        MessageDelta(text="ole.", message_id="item_1"),
    ]
    assert events[-1].data()["final_text"] == "This answer is whole."


def test_what_a_new_attempt_says_otherwise_is_a_message_of_its_own() -> None:
    events = run(STARTED, said("This ans"), retry(1), said("Something else.", "item_1"), done())
    assert [event.message_id for event in of(MessageDelta, events)] == ["item_0", "item_1"]
    assert events[-1].data()["final_text"] == "Something else."


def test_what_was_said_before_a_tool_does_not_come_again() -> None:
    events = run(
        STARTED,
        said("I look."),
        item("command_execution", "item_1", command="ls", aggregated_output="", exit_code=0),
        retry(1),
        said("I look.", "item_2"),
        done(),
    )
    assert [event.message_id for event in of(MessageDelta, events)] == ["item_0", "item_2"]


def test_a_message_that_grows_is_told_in_pieces() -> None:
    events = run(
        STARTED,
        item("agent_message", stage="started", text=""),
        item("agent_message", stage="updated", text="Hel"),
        said("Hello."),
        done(),
    )
    assert of(MessageDelta, events) == [
        MessageDelta(text="Hel", message_id="item_0"),
        MessageDelta(text="lo.", message_id="item_0"),
    ]


# --- tools --------------------------------------------------------------------------------------------------------


def test_c7_a_command_is_a_call_and_its_result() -> None:
    begun = item(
        "command_execution", stage="started", command="x", aggregated_output="", exit_code=None, status="in_progress"
    )
    ended = item("command_execution", command="x", aggregated_output="out\n", exit_code=3, status="failed")
    assert run(STARTED, begun, ended, ended, done())[1:-1] == [
        ToolUse(tool_call_id="item_0", name="Bash", input={"command": "x"}),
        ToolResult(tool_call_id="item_0", content="out\n", is_error=True),
    ]


def test_a_plan_is_told_each_time_it_changes() -> None:
    def plan(stage: str, *, first: bool) -> dict[str, Any]:
        items = [{"text": "a", "completed": first}, {"text": "b", "completed": False}]
        return item("todo_list", stage=stage, items=items)

    events = run(
        STARTED, plan("started", first=False), plan("updated", first=True), plan("completed", first=True), done()
    )
    assert [(event.tool_call_id, event.content) for event in of(ToolResult, events)] == [
        ("item_0", "[ ] a\n[ ] b"),
        ("item_0.1", "[x] a\n[ ] b"),
    ]
    assert [event.name for event in of(ToolUse, events)] == ["TodoList", "TodoList"]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "item.completed", "item": {"id": "item_0", "type": "no_such_item"}},
        {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message"}},
        {"type": "item.completed", "item": {"id": 7, "type": "agent_message", "text": "x"}},
        {"type": "item.completed", "item": {"id": "i", "type": "command_execution", "command": ["ls"], "exit_code": 0}},
        {"type": "item.exploded", "item": {}},
        {"type": "thread.started"},
        {"no": "type"},
    ],
)
def test_what_is_not_understood_is_shown(line: dict[str, Any]) -> None:
    events = run(STARTED, line, said("Hi.", "item_9"), done())
    assert [event.phase for event in of(Status, events)] == ["unparsed"]
    assert isinstance(events[-1], Completed)


# --- ends without an end ------------------------------------------------------------------------------------------


def test_an_output_without_its_end_is_a_failure_that_keeps_what_was_said() -> None:
    last = run(STARTED, said("Hi."))[-1]
    assert isinstance(last, Error)
    assert (last.reason, last.details["text"]) == ("cli_failed", "Hi.")
    assert "may lack its end" in last.message
    begun = item("command_execution", "item_1", "started", command="x", aggregated_output="")
    assert isinstance(run(STARTED, said("Hi."), begun)[-1], Error)


@pytest.mark.parametrize(("exit_code", "words"), [(None, "ended without"), (1, "exit code 1"), (143, "signal 15")])
def test_an_end_that_nothing_was_said_of(exit_code: int | None, words: str) -> None:
    last = run(STARTED, TURN, retry(2), exit_code=exit_code, stderr="first\nlast words\n")[-1]
    assert isinstance(last, Error)
    assert last.reason == "cli_failed"
    assert words in last.message
    assert last.message.endswith("last words")
    assert last.details["last_retry"]["attempt"] == 2


def test_what_is_on_stderr_once_a_thread_has_begun_gives_no_reason() -> None:
    last = run(STARTED, TURN, exit_code=1, stderr="no rollout found\n")[-1]
    assert isinstance(last, Error)
    assert last.reason == "cli_failed"


def test_its_notes_to_its_developers_are_no_last_words() -> None:
    stderr = "Error: a reason\n2026-11-30T11:48:48.506203Z ERROR codex_core::session: failed to record\n"
    assert run(exit_code=1, stderr=stderr)[-1].data()["message"].endswith("Error: a reason")
