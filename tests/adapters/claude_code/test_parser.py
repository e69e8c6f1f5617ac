from typing import Any

import pytest

from adapters.claude_code import ClaudeCodeAdapter
from orchestrator.events import (
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    ToolResult,
    ToolUse,
)
from orchestrator.framing import SOFT_LIMIT
from tests.adapters.claude_code.lines import (
    INIT,
    assistant,
    begin,
    delta,
    result,
    run,
    start,
    stream,
    text,
    tool_result,
    tool_use,
)


def said(events: list[Any], kind: type[MessageDelta | Thinking] = MessageDelta) -> list[str]:
    return [event.text for event in events if isinstance(event, kind)]


# --- text and thinking are reported once ---------------------------------------------------------------------------------


def test_deltas_are_not_repeated_by_the_whole_block() -> None:
    lines = start("m1"), begin(0), delta(0, "Hel"), delta(0, "lo"), assistant("m1", text("Hello"))
    assert said(run(INIT, *lines, result("Hello"))) == ["Hel", "lo"]


def test_without_deltas_the_whole_block_is_told() -> None:
    events = run(INIT, assistant("m1", text("Hello")), result("Hello"))
    assert events[1] == MessageDelta(text="Hello", message_id="m1")


def test_what_the_deltas_left_out_is_told() -> None:
    assert said(run(start("m1"), begin(0), delta(0, "Hel"), assistant("m1", text("Hello")))) == ["Hel", "lo"]


def test_each_block_of_a_message_is_matched_with_its_own_deltas() -> None:
    events = run(
        start("m1"),
        begin(0),
        delta(0, "one"),
        assistant("m1", text("one")),
        begin(1),
        assistant("m1", text("two")),
        begin(2),
        delta(2, "three"),
        assistant("m1", text("three")),
    )
    assert said(events) == ["one", "two", "three"]


def test_thinking_is_told_once_and_apart_from_text() -> None:
    whole = {"type": "thinking", "thinking": "hm, hm", "signature": "x"}
    events = run(
        start("m1"),
        begin(0, "thinking"),
        delta(0, "hm, ", "thinking"),
        delta(0, "hm", "thinking"),
        stream({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x"}}),
        assistant("m1", whole),
        begin(1),
        delta(1, "yes"),
        assistant("m1", text("yes")),
        assistant("m2", {**whole, "thinking": "again"}),
    )
    assert said(events, Thinking) == ["hm, ", "hm", "again"]
    assert said(events) == ["yes"]


def test_an_answer_asked_for_again_without_a_stream_is_another_message() -> None:
    events = run(INIT, start("m1"), begin(0), delta(0, "brok"), assistant("m2", text("whole")), result("whole"))
    assert [(e.message_id, e.text) for e in events if isinstance(e, MessageDelta)] == [("m1", "brok"), ("m2", "whole")]


def test_a_message_without_an_id_is_named_by_its_line() -> None:
    assert run(INIT, assistant(None, text("hi")))[1] == MessageDelta(text="hi", message_id="line-2")


def test_empty_text_is_no_event() -> None:
    assert said(run(INIT, start("m1"), begin(0), delta(0, ""), assistant("m1", text("")))) == []


# --- older shapes ----------------------------------------------------------------------------------------------------


def test_stream_events_without_their_wrapper_are_read() -> None:
    lines = start("m1")["event"], begin(0)["event"], delta(0, "hi")["event"], assistant("m1", text("hi"))
    assert said(run(INIT, *lines)) == ["hi"]


def test_an_old_init_and_an_old_result_are_read() -> None:
    first, last = run(
        {"type": "system", "session_id": "s-1"},
        {"type": "result", "subtype": "success", "result": "ok", "cost_usd": 0.5, "num_turns": 2},
    )
    assert first == SessionStarted(session_id="s-1")
    assert isinstance(last, Completed)
    assert (last.final_text, last.cost_usd, last.turns, last.duration_ms) == ("ok", 0.5, 2, 0)


def test_content_may_be_plain_text() -> None:
    line = {"type": "assistant", "message": {"id": "m1", "content": "hi"}}
    assert said(run(INIT, line, {"type": "user", "message": {"role": "user", "content": "the prompt"}})) == ["hi"]


def test_an_old_result_that_calls_its_failure_no_error_is_one() -> None:
    last = run(INIT, {"type": "result", "subtype": "error_max_turns", "is_error": False, "num_turns": 3})[-1]
    assert isinstance(last, Error)
    assert "limit of turns" in last.message


# --- sessions --------------------------------------------------------------------------------------------------------


def test_the_session_begins_once_however_often_it_is_announced() -> None:
    events = run(INIT, INIT, {**INIT, "session_id": "s-2"}, result())
    assert [e.session_id for e in events if isinstance(e, SessionStarted)] == ["s-1"]


def test_mcp_servers_that_are_not_there_are_reported() -> None:
    servers = [
        {"name": "a", "status": "connected"},
        {"name": "b", "status": "failed"},
        {"name": "c", "status": "needs-auth"},
    ]
    first, *rest = run({**INIT, "mcp_servers": servers}, result())
    assert isinstance(first, SessionStarted)
    assert first.mcp_servers == servers
    assert rest[:-1] == [
        Status(phase="mcp_unavailable", info={"server": "b", "reason": "failed"}),
        Status(phase="mcp_unavailable", info={"server": "c", "reason": "needs-auth"}),
    ]


# --- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("out", "out"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}],
            "[image image/png, 3 bytes]",
        ),
        ([{"type": "image", "source": {"type": "url"}}, "and text"], "[image url]\nand text"),
        ([{"type": "tool_reference", "tool_name": "Grep"}], "[tool_reference Grep]"),
        ([{"type": "something"}], "[something]"),
        ({"an": "object"}, '{"an": "object"}'),
    ],
)
def test_results_of_every_kind_become_text(content: Any, shown: str) -> None:
    events = run(INIT, assistant("m1", tool_use("t1", command="ls")), tool_result("t1", content=content))
    assert events[1] == ToolUse(tool_call_id="t1", name="Bash", input={"command": "ls"})
    assert events[2] == ToolResult(tool_call_id="t1", content=shown, is_error=False)


def test_a_result_is_an_error_only_when_it_says_so() -> None:
    lines = [
        tool_result("t1", content=""),
        tool_result("t1", content="", is_error=False),
        tool_result("t1", content="", is_error=True),
        tool_result("t1", content="", is_error=None),
    ]
    assert [e.is_error for e in run(*lines) if isinstance(e, ToolResult)] == [False, False, True, False]


def test_a_call_that_is_printed_again_is_told_once() -> None:
    events = run(INIT, assistant("m1", tool_use("t1")), assistant("m1", tool_use("t1")))
    assert sum(isinstance(event, ToolUse) for event in events) == 1


def test_tools_that_the_provider_runs_are_tools_too() -> None:
    use = {**tool_use("t1", "web_search", query="x"), "type": "server_tool_use"}
    back = {
        "type": "web_search_tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "web_search_result", "url": "u"}],
    }
    events = run(INIT, assistant("m1", use), assistant("m1", back))
    assert [event.kind for event in events[1:3]] == ["tool_use", "tool_result"]
    assert events[2].data()["content"] == "[web_search_result u]"


def test_a_sub_agent_speaks_in_the_name_of_the_call_that_began_it() -> None:
    events = run(
        INIT,
        assistant("m1", tool_use("task", "Agent")),
        start("m2", "task"),
        begin(0, parent="task"),
        delta(0, "inner", parent="task"),
        start("m3"),
        begin(0),
        delta(0, "outer"),
        assistant("m2", text("inner"), parent="task"),
        assistant("m4", tool_use("t2"), parent="task"),
        tool_result("t2", parent="task", content="x"),
        tool_result("task", content="done"),
    )
    reported = [(event.kind, event.parent_tool_call_id) for event in events[1:-1]]
    assert reported == [
        ("tool_use", None),
        ("message_delta", "task"),
        ("message_delta", None),
        ("tool_use", "task"),
        ("tool_result", "task"),
        ("tool_result", None),
    ]


# --- status ----------------------------------------------------------------------------------------------------------


def test_a_retry_is_told_with_its_cause() -> None:
    line = {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 1,
        "retry_delay_ms": 576.3,
        "error_status": 529,
        "error": "overloaded",
    }
    silent = {**line, "attempt": 2, "error_status": None, "error": "unknown"}
    assert [event.data() for event in run(INIT, line, silent)[1:3]] == [
        {"phase": "retrying", "attempt": 1, "delay_ms": 576, "cause": "overloaded (HTTP 529)"},
        {"phase": "retrying", "attempt": 2, "delay_ms": 576, "cause": "unknown (no answer)"},
    ]


def test_a_limit_is_reported_when_it_warns() -> None:
    def line(**info: Any) -> dict[str, Any]:
        return {"type": "rate_limit_event", "rate_limit_info": info}

    events = run(
        INIT,
        line(status="allowed", isUsingOverage=False),
        line(status="allowed_warning", rateLimitType="five_hour", resetsAt=1796000000, utilization=0.9),
        line(status="rejected"),
        line(status="allowed", isUsingOverage=True),
        result(),
    )
    assert [event.data() for event in events if isinstance(event, Status)] == [
        {
            "phase": "limit_warning",
            "state": "allowed_warning",
            "limit": "five_hour",
            "resets_at": 1796000000,
            "utilization": 0.9,
        },
        {"phase": "limit_warning", "state": "rejected"},
        {"phase": "limit_warning", "state": "allowed", "overage": True},
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "system", "subtype": "status", "status": "requesting"},
        {"type": "system", "subtype": "thinking_tokens", "estimated_tokens": 4},
        {"type": "system", "subtype": "task_started", "task_id": "x"},
        {"type": "control_response", "response": {}},
        {"type": "tool_progress", "tool_use_id": "t"},
        stream({"type": "ping"}),
        stream({"type": "message_stop"}),
        stream({"type": "content_block_stop", "index": 0}),
        assistant("m1", {"type": "redacted_thinking", "data": "x"}),
    ],
)
def test_lines_that_say_nothing_new_are_quiet(line: dict[str, Any]) -> None:
    assert [event.kind for event in run(INIT, line, result())] == ["session_started", "completed"]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "brand_new"},
        {"type": "error", "error": {"message": "not of a stream"}},
        {"type": "system", "subtype": "brand_new"},
        stream({"type": "brand_new"}),
        stream({"type": "content_block_delta", "index": 0, "delta": {"type": "brand_new"}}),
        assistant("m1", {"type": "brand_new"}),
        {"type": ["no", "text"]},
        {"no": "type"},
        assistant("m1", {"type": "text", "text": 5}),
        assistant("m1", {"type": "tool_use", "id": "t1", "name": "Bash", "input": "no object"}),
        {"type": "assistant", "message": {"id": "m1", "content": 7}},
        {"type": "system", "subtype": "api_retry", "attempt": "one", "retry_delay_ms": 1},
        "Warning: something printed by a library",
        "[]",
    ],
)
def test_lines_that_are_not_understood_are_shown(line: Any) -> None:
    events = run(INIT, line, result())
    assert [event.kind for event in events] == ["session_started", "status", "completed"]
    assert events[1].data()["phase"] == "unparsed"
    assert events[1].data()["line"] == 2


def test_a_known_block_beside_an_unknown_one_is_told() -> None:
    events = run(INIT, assistant("m1", {"type": "brand_new"}, text("still here")), result())
    assert [event.kind for event in events] == ["session_started", "status", "message_delta", "completed"]


# --- endings ---------------------------------------------------------------------------------------------------------


def test_the_final_text_is_the_results() -> None:
    last = run(INIT, assistant("m1", text("first")), result("the result"))[-1]
    assert isinstance(last, Completed)
    assert last.final_text == "the result"


@pytest.mark.parametrize("said", [None, ""])
def test_c7_without_one_it_is_the_last_message(said: str | None) -> None:
    last = run(INIT, assistant("m1", text("old")), assistant("m2", text("new"), text("er")), result(said))[-1]
    assert isinstance(last, Completed)
    assert last.final_text == "newer"


def test_the_last_message_is_not_a_sub_agents() -> None:
    last = run(INIT, assistant("m1", text("mine")), assistant("m2", text("its"), parent="t"), result(None))[-1]
    assert last.data()["final_text"] == "mine"


def test_an_answer_without_a_result_may_lack_its_end_and_nothing_of_it_is_lost() -> None:
    """Whether the text is whole cannot be known: half an answer must not look like an answer."""
    usage = {"input_tokens": 10, "output_tokens": 1}
    lines = (
        stream({"type": "message_start", "message": {"id": "m1", "usage": usage}}),
        begin(0),
        delta(0, "answer"),
        stream({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}}),
    )
    *before, last = run(INIT, *lines, stderr="no space left")
    assert isinstance(last, Error)
    assert last.reason == "cli_failed"
    assert "may lack its end" in last.message
    assert last.details == {"exit_code": 0, "stderr": "no space left", "text": "answer"}
    assert [event.text for event in before if isinstance(event, MessageDelta)] == ["answer"]


def test_of_a_long_text_without_a_result_the_end_is_kept() -> None:
    last = run(INIT, start("m1"), begin(0), delta(0, "x" * 30_000 + "the end"))[-1]
    assert isinstance(last, Error)
    assert len(last.details["text"]) == 20_000
    assert last.details["text"].endswith("the end")


@pytest.mark.parametrize(
    ("lines", "exit_code"),
    [
        ([], 0),
        ([assistant("m1", text("I look")), assistant("m1", tool_use("t1"))], 0),
        ([assistant("m1", text("answer"))], 1),
        ([assistant("m1", text("answer"))], 143),
        ([assistant("m1", text("answer"))], None),
        ([assistant("m1", text("API Error: x"), error="unknown")], 0),
    ],
)
def test_a_missing_result_is_an_error_otherwise(lines: list[Any], exit_code: int | None) -> None:
    last = run(INIT, *lines, exit_code=exit_code, stderr="a\nlast words\n")[-1]
    assert isinstance(last, Error)
    assert last.reason == "cli_failed"
    assert last.details["exit_code"] == exit_code
    assert last.details["stderr"] == "a\nlast words\n"


def test_an_error_says_how_the_process_ended() -> None:
    assert run(INIT, exit_code=143)[-1].data()["message"] == "Claude Code was ended by signal 15 without a result."
    reported = run(exit_code=1, stderr="one\n  two  \n")[-1].data()["message"]
    assert reported == "Claude Code ended with exit code 1 without a result. Its last words on stderr: two"


def test_the_last_retry_is_told_when_a_run_is_ended_while_it_waits() -> None:
    retry = {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 3,
        "retry_delay_ms": 9,
        "error_status": 401,
        "error": "authentication_failed",
    }
    details = run(INIT, retry, exit_code=143)[-1].data()["details"]
    assert details["last_retry"] == {"attempt": 3, "delay_ms": 9, "cause": "authentication_failed (HTTP 401)"}


def test_a_failure_that_was_told_before_the_end_gives_the_reason() -> None:
    line = assistant("x", text("Not logged in · Please run /login"), error="authentication_failed")
    events = run(INIT, line, exit_code=1)
    assert [event.kind for event in events] == ["session_started", "error"]
    assert events[-1].data()["reason"] == "auth_required"


@pytest.mark.parametrize(
    ("exit_code", "stderr", "reason"),
    [
        (127, "claude: not found", "cli_not_installed"),
        (126, "claude: permission denied", "cli_not_installed"),
        (1, "No conversation found with session ID: x", "resume_failed"),
        (1, "Invalid API key · Please run /login", "auth_rejected"),
        (1, "Error: something else", "cli_failed"),
    ],
)
def test_before_a_session_begins_stderr_tells_the_reason(exit_code: int, stderr: str, reason: str) -> None:
    assert run(exit_code=exit_code, stderr=stderr)[-1].data()["reason"] == reason


def test_later_stderr_and_exit_code_do_not() -> None:
    for code in (1, 127):
        last = run(INIT, exit_code=code, stderr="tool said: Invalid API key")[-1]
        assert last.data()["reason"] == "cli_failed"


def test_is_error_decides_not_the_exit_code() -> None:
    assert run(INIT, result("fine"), exit_code=1)[-1].kind == "completed"
    assert run(INIT, result("bad", is_error=True), exit_code=0)[-1].kind == "error"


def test_nothing_comes_after_the_end() -> None:
    events = run(INIT, result("one"), INIT, assistant("m9", text("more")), result("two"), "noise")
    assert [event.kind for event in events] == ["session_started", "completed"]


def test_a_huge_line_is_cut_and_marked_and_the_run_ends_well() -> None:
    big = "x" * (SOFT_LIMIT + 1)
    events = run(
        INIT, start("m1"), begin(0), delta(0, big[:100_000]), delta(0, big), assistant("m1", text(big)), result(big)
    )
    assert [event.kind for event in events] == ["session_started", "message_delta", "message_delta", "completed"]
    assert "[cut:" in events[-1].data()["final_text"]
    assert len(events[-1].data()["final_text"]) < SOFT_LIMIT


def test_the_kept_last_message_is_bounded() -> None:
    lines = [delta(0, "y" * 100_000) for _ in range(10)]
    final = run(INIT, start("m1"), begin(0), *lines, result(None))[-1].data()["final_text"]
    assert len(final) < 270_000
    assert final.endswith("[cut: 737856 characters, the whole is in the run's log]")


def test_half_a_surrogate_pair_does_not_reach_an_event() -> None:
    events = run(
        INIT, r'{"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "a\ud83d"}]}}'
    )
    assert events[1].data()["text"] == "a\ufffd"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_json_cannot_hold_are_not_passed_on(number: str) -> None:
    events = run(
        INIT, f'{{"type": "result", "is_error": false, "result": "x", "total_cost_usd": {number}}}', exit_code=1
    )
    assert [event.kind for event in events] == ["session_started", "status", "error"]


def test_what_the_cli_does_otherwise_than_asked_is_shown() -> None:
    line = b'{"type":"system","subtype":"informational","content":"Model \\"x\\" is restricted. Using y instead."}\n'
    start = b'{"type":"system","subtype":"init","session_id":"s"}\n'
    found = ClaudeCodeAdapter().parser().feed(start + line)[-1]
    assert found == Status(phase="diagnostic", info={"stderr": 'Model "x" is restricted. Using y instead.'})
