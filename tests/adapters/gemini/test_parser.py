"""The traps of the CLI's stream, one by one; the recordings have the rest."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.gemini.parser import TEXT_KEEP
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Tokens,
    ToolResult,
    ToolUse,
)
from tests.adapters.gemini.lines import SESSION, call, end, failed, init, result, run, said


def last_error(*lines: dict[str, Any] | bytes, code: int | None = 0, stderr: str = "") -> Error:
    error = run(*lines, code=code, stderr=stderr)[-1]
    assert isinstance(error, Error)
    return error


def phases(events: list[AgentEvent]) -> list[str]:
    return [event.phase for event in events if isinstance(event, Status)]


def test_a_whole_run() -> None:
    events = run(init(), said("I run it. "), call(), result(output="hi"), said("It "), said("printed hi."), end())
    assert events == [
        SessionStarted(session_id=SESSION, model="flash"),
        MessageDelta(text="I run it. ", message_id="message-1"),
        ToolUse(tool_call_id="c1", name="run_shell_command", input={"command": "x"}),
        ToolResult(tool_call_id="c1", content="hi", is_error=False),
        MessageDelta(text="It ", message_id="message-2"),
        MessageDelta(text="printed hi.", message_id="message-2"),
        Completed(
            final_text="It printed hi.",
            tokens=Tokens(input=900, output=45, cache_read=300, reasoning=7),
            duration_ms=413,
        ),
    ]


def test_the_echo_of_the_prompt_is_no_answer() -> None:
    events = run(init(), {"type": "message", "role": "user", "content": "Please do it."}, said("Done."), end())
    assert [event.text for event in events if isinstance(event, MessageDelta)] == ["Done."]


def test_killed_it_ends_with_exit_code_0_and_no_result() -> None:
    error = last_error(init(), said("Hello fr"))
    assert (error.reason, error.details["exit_code"]) == ("cli_failed", 0)


def test_an_output_that_stops_in_the_middle_of_a_line_is_no_success() -> None:
    events = run(init(), call(), b'{"type":"tool_result","tool_id":"c1","status":"succ')
    assert phases(events) == ["unparsed"]
    assert isinstance(events[-1], Error)


def test_an_error_in_the_stream_is_an_error_though_the_exit_code_is_0() -> None:
    line = {"type": "error", "severity": "error", "message": "Model stream ended without a finish reason."}
    events = run(init(), said("Partial"), line, end(status="error"), code=0)
    assert phases(events) == ["diagnostic"]
    error = events[-1]
    assert isinstance(error, Error)
    assert error.reason == "provider_unavailable"
    assert "without a finish reason" in error.message
    assert error.details["tokens"] == {"input": 900, "output": 45, "cache_read": 300, "reasoning": 7}


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("Loop detected, stopping execution", "repeated itself"),
        ("Maximum session turns exceeded", "limit of turns"),
        ("Agent execution blocked: a hook said so", "stopped the agent"),
    ],
)
@pytest.mark.parametrize("text", [[], [said("So far.")]])
def test_an_agent_that_the_cli_stops_has_not_completed(message: str, what: str, text: list[dict[str, Any]]) -> None:
    line = {"type": "error", "severity": "warning", "message": message}
    events = run(init(), *text, line, end())
    assert Status(phase="diagnostic", info={"stderr": message}) in events
    error = events[-1]
    assert isinstance(error, Error)
    assert error.reason == "cli_failed"
    assert what in error.message
    assert message in error.message
    assert error.details["text"] == ("So far." if text else "")
    assert error.details["tokens"]["input"] == 900


def test_any_other_warning_before_a_success_is_shown_and_changes_nothing() -> None:
    line = {"type": "error", "severity": "warning", "message": "Something else"}
    events = run(init(), said("So far."), line, end())
    assert Status(phase="diagnostic", info={"stderr": "Something else"}) in events
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.stop_reason is None


@pytest.mark.parametrize(
    ("more", "content", "is_error"),
    [
        ({"output": "out\nerr"}, "out\nerr", False),
        ({}, "", False),
        (
            {
                "status": "error",
                "output": "Error: File not found.",
                "error": {"type": "file_not_found", "message": "m"},
            },
            "Error: File not found.",
            True,
        ),
        ({"status": "error", "error": {"type": "x", "message": "why"}}, "why", True),
        ({"status": "success", "error": {"type": "x", "message": "Operation cancelled"}}, "Operation cancelled", True),
    ],
)
def test_results_of_tools(more: dict[str, Any], content: str, is_error: bool) -> None:
    events = run(init(), call(), result(**more), end())
    assert ToolResult(tool_call_id="c1", content=content, is_error=is_error) in events


def test_calls_that_run_side_by_side() -> None:
    events = run(init(), call("a"), call("b"), result("b", output="2"), result("a", output="1"), said("ok"), end())
    assert [event.tool_call_id for event in events if isinstance(event, ToolResult)] == ["b", "a"]
    assert [event.message_id for event in events if isinstance(event, MessageDelta)] == ["message-1"]


def test_a_call_is_told_once_and_a_result_without_a_call_is_not_understood() -> None:
    events = run(init(), call(), call(), result("other"), end())
    assert len([event for event in events if isinstance(event, ToolUse)]) == 1
    assert phases(events) == ["unparsed"]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "future"},
        {"type": "message", "role": "system", "content": "x"},
        {"type": "message", "role": "assistant"},
        {"type": "tool_use", "tool_id": "x", "tool_name": "y", "parameters": "z"},
        {"type": "result"},
        {"type": "init", "session_id": 1},
        {"type": "error"},
    ],
)
def test_what_is_not_understood_is_shown(line: dict[str, Any]) -> None:
    assert phases(run(init(), line, said("x"), end())) == ["unparsed"]


def test_a_last_message_without_end_is_bounded() -> None:
    piece = "x" * 1_000_000
    completed = run(init(), *[said(piece)] * 10, end())[-1]
    assert isinstance(completed, Completed)
    assert completed.final_text.startswith("x" * TEXT_KEEP + " …[cut: ")


def test_a_run_that_ends_with_a_tool_has_the_text_before_it() -> None:
    completed = run(init(), said("I do it."), call(), result(), end())[-1]
    assert isinstance(completed, Completed)
    assert completed.final_text == "I do it."


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (144, "cli_failed"),
        (145, "auth_rejected"),
        (147, "auth_rejected"),
        (173, "rate_limited"),
        (244, "provider_unavailable"),
        (247, "provider_unavailable"),
        (17, "provider_unavailable"),
        (1, "cli_failed"),
        (137, "cli_failed"),
        (None, "cli_failed"),
    ],
)
def test_the_exit_code_has_the_status_that_the_words_have_not(code: int | None, reason: str) -> None:
    assert last_error(init(), failed("[API Error: the provider's words]"), code=code).reason == reason
    assert last_error(init(), code=code).reason == reason


@pytest.mark.parametrize(
    ("code", "stderr", "reason", "said"),
    [
        (41, "Please set an Auth method in your settings", "auth_required", "set an Auth method"),
        (41, "", "auth_required", "nothing to log in with"),
        (42, 'Error resuming session: Invalid session identifier "x".', "resume_failed", "Start a new one"),
        (42, "Exiting due to a confirmation prompt", "cli_failed", "confirmation prompt"),
        (55, "\x1b[31mGemini CLI is not running in a trusted directory.\x1b[0m", "cli_failed", "does not trust"),
        (127, "podmentor-filepipe: node: No such file or directory", "cli_not_installed", "Build the image"),
        (1, "An unexpected critical error occurred:Error: EROFS\n    at main (x.js:1:1)", "cli_failed", "EROFS"),
        (137, "", "cli_failed", "ended by signal 9"),
    ],
)
def test_before_a_session_stderr_and_exit_code_tell_why(code: int, stderr: str, reason: str, said: str) -> None:
    error = last_error(code=code, stderr=stderr)
    assert error.reason == reason
    assert said in error.message
    assert "\x1b" not in error.message


def test_what_a_tool_prints_on_stderr_is_no_reason() -> None:
    error = last_error(init(), call(), code=0, stderr="API key not valid. Error resuming session")
    assert error.reason == "cli_failed"


def test_nothing_counts_behind_the_result() -> None:
    events = run(init(), said("Done."), end(), said("more"), failed("no"))
    assert isinstance(events[-1], Completed)
    assert len(events) == 3


@pytest.mark.parametrize("stats", [None, [], {}, {"input_tokens": "x", "cached": -1, "duration_ms": True}])
def test_counts_that_are_missing_harm_nothing(stats: Any) -> None:
    completed = run(init(), said("x"), end(stats=stats))[-1]
    assert isinstance(completed, Completed)
    assert (completed.tokens.input, completed.duration_ms) == (0, 0)
