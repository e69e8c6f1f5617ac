from typing import Any

import pytest

from adapters.opencode import OpenCodeAdapter
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    ErrorReason,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    Tokens,
    ToolResult,
    ToolUse,
)
from tests.adapters.opencode.lines import (
    SESSION,
    delta,
    error,
    line,
    retry,
    run,
    step_finish,
    step_start,
    text,
    tool,
)

STARTED = SessionStarted(session_id=SESSION)


def messages(events: list[AgentEvent]) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, MessageDelta):
            found[event.message_id] = found.get(event.message_id, "") + event.text
    return found


def retries(events: list[AgentEvent]) -> list[tuple[int, int, str]]:
    infos = [event.info for event in events if isinstance(event, Status) and event.phase == "retrying"]
    return [(info["attempt"], info["delay_ms"], info["cause"]) for info in infos]


def last_error(events: list[AgentEvent]) -> Error:
    assert isinstance(events[-1], Error)
    return events[-1]


def test_without_the_plugin_whole_texts_are_told_and_the_run_ends_with_its_last_step() -> None:
    events = run(step_start(at=1000), text("Hmm.", "r1", kind="reasoning"), text("Hello."), step_finish(at=1250))
    assert events == [
        STARTED,
        Thinking(text="Hmm."),
        MessageDelta(text="Hello.", message_id="msg_1"),
        Completed(
            final_text="Hello.",
            tokens=Tokens(input=900, output=45, cache_read=300, cache_write=0, reasoning=7),
            duration_ms=250,
            stop_reason="stop",
            turns=1,
        ),
    ]


def test_with_the_plugin_each_line_comes_twice_and_is_told_once() -> None:
    reported = [
        step_start(),
        delta("Hel"),
        delta("lo."),
        text("Hello."),
        tool("tool_start", status="running"),
        tool("tool_use"),
        step_finish("tool-calls"),
    ]
    again = [step_start(), text("Hello."), tool("tool_use"), step_finish("tool-calls")]
    second = [step_start("s2", "msg_2"), text("Done.", "t2", "msg_2"), step_finish("stop", "f2", "msg_2")]
    events = run(line("session", version="1.18.33", model="m"), *reported, *again, *second, *second)
    assert events[0] == SessionStarted(session_id=SESSION, model="m", cli_version="1.18.33")
    assert events[1:-1] == [
        MessageDelta(text="Hel", message_id="msg_1"),
        MessageDelta(text="lo.", message_id="msg_1"),
        ToolUse(tool_call_id="call_1", name="bash", input={"command": "ls"}),
        ToolResult(tool_call_id="call_1", content="a\n", is_error=False),
        MessageDelta(text="Done.", message_id="msg_2"),
    ]
    assert isinstance(events[-1], Completed)
    assert (events[-1].final_text, events[-1].turns, events[-1].tokens.input) == ("Done.", 2, 1800)


def test_the_end_of_a_text_that_was_not_streamed_is_told() -> None:
    assert messages(run(step_start(), delta("Hel"), text("Hello."), step_finish())) == {"msg_1": "Hello."}


def test_a_piece_behind_the_whole_text_is_not_told_again() -> None:
    assert messages(run(step_start(), text("Hello."), delta("Hello."), step_finish())) == {"msg_1": "Hello."}


def test_costs_are_summed_and_unknown_when_there_are_no_prices() -> None:
    dear = run(step_finish("tool-calls", cost=0.25), step_finish("stop", "f2", cost=0.5))[-1]
    free = run(step_finish("stop"))[-1]
    assert isinstance(dear, Completed)
    assert isinstance(free, Completed)
    assert (dear.cost_usd, free.cost_usd) == (0.75, None)


@pytest.mark.parametrize(
    ("state", "name", "content", "is_error"),
    [
        ({"metadata": {"exit": 3}}, "bash", "a\n", True),
        ({"metadata": {"exit": None}}, "bash", "a\n", True),
        ({"metadata": {}}, "bash", "a\n", False),
        ({"metadata": None}, "bash", "a\n", False),
        ({"status": "error", "error": "File not found"}, "bash", "File not found", True),
        ({"attachments": [{"mime": "image/png", "url": "data:…"}]}, "bash", "a\n\n[image/png]", False),
    ],
)
def test_what_a_tool_gave_back(state: dict[str, Any], name: str, content: str, is_error: bool) -> None:
    events = run(tool("tool_use", **state))
    assert events[1:3] == [
        ToolUse(tool_call_id="call_1", name=name, input={"command": "ls"}),
        ToolResult(tool_call_id="call_1", content=content, is_error=is_error),
    ]


def test_a_tool_that_does_not_exist_is_named_as_the_model_named_it() -> None:
    arguments = {"tool": "no_such_tool", "error": "unavailable"}
    use, result = run(tool("tool_use", name="invalid", input=arguments, output="invalid"))[1:3]
    assert isinstance(use, ToolUse)
    assert isinstance(result, ToolResult)
    assert (use.name, result.is_error) == ("no_such_tool", True)


def test_providers_that_count_calls_from_zero_do_not_confuse() -> None:
    events = run(tool("tool_use", "p1", "call_0"), tool("tool_use", "p2", "call_0"))
    assert [event.tool_call_id for event in events if isinstance(event, ToolUse)] == ["call_0", "p2"]
    assert [event.tool_call_id for event in events if isinstance(event, ToolResult)] == ["call_0", "p2"]


def test_a_sub_agent_speaks_under_its_call_and_does_not_end_the_run() -> None:
    inner = [
        step_start("s2", "msg_2", parent="p1"),
        text("Hm.", "r2", "msg_2", "reasoning", parent="p1"),
        delta("Helper.", "t2", "msg_2", parent="p1"),
        tool("tool_start", "p2", "call_2", parent="p1"),
        step_finish("stop", "f2", "msg_2", parent="p1"),
    ]
    events = run(step_start(), tool("tool_start", name="task"), *inner, tool("tool_use", name="task"), exit_code=0)
    parents = [event.parent_tool_call_id for event in events]
    assert parents == [None, None, "call_1", "call_1", "call_1", None, None]
    assert last_error(events).reason == "cli_failed"
    assert last_error(events).details["exit_code"] == 0
    whole = run(step_start(), text("Mine."), tool("tool_start", name="task"), *inner, step_finish())[-1]
    assert isinstance(whole, Completed)
    assert (whole.final_text, whole.turns, whole.tokens.input) == ("Mine.", 1, 1800)


def test_retries_are_told_with_their_cause() -> None:
    events = run(retry(1), retry(2, statusCode=200, message="Connection reset"), exit_code=143)
    assert retries(events) == [(1, 2000, "Rate limit reached (HTTP 429)"), (2, 2000, "Connection reset")]
    assert last_error(events).details["last_retry"]["attempt"] == 2


def test_an_answer_that_begins_again_is_a_retry_and_another_message() -> None:
    broken = [step_start("s1"), delta("This br"), step_start("s1")]
    events = run(*broken, step_start("s2"), delta("This is whole.", "t2"), text("This br"), step_finish())
    assert retries(events) == [(1, 0, "the provider's answer broke off")]
    assert messages(events) == {"msg_1": "This br", "msg_1.2": "This is whole."}
    assert isinstance(events[-1], Completed)
    assert events[-1].final_text == "This is whole."


def test_a_retry_that_was_announced_is_told_once() -> None:
    events = run(step_start("s1"), retry(1), step_start("s2"), step_finish())
    assert [attempt for attempt, *_ in retries(events)] == [1]


def test_a_second_step_of_the_same_message_is_no_retry() -> None:
    first, second = (step_start("s1"), step_finish("tool-calls")), (step_start("s2"), step_finish("stop", "f2"))
    assert retries(run(*first, *second)) == []


@pytest.mark.parametrize(
    ("lines", "exit_code", "reason"),
    [
        ([error("Incorrect API key provided.", statusCode=401)], 1, "auth_rejected"),
        ([error("Rate limit reached", statusCode=429, attempts=4, retryAfter=9)], 0, "rate_limited"),
        (
            [error("The operation was aborted.", "MessageAbortedError"), error("x", statusCode=500)],
            1,
            "provider_unavailable",
        ),
        (
            [error("x", statusCode=500), error("The operation was aborted.", "MessageAbortedError")],
            1,
            "provider_unavailable",
        ),
        ([step_start(), text("Hi"), step_finish("length")], 0, "cli_failed"),
        ([step_start(), step_finish("tool-calls")], 0, "cli_failed"),
        ([step_start(), text("Hi"), step_finish("stop")], 143, "cli_failed"),
        ([step_start(), text("Hi"), step_finish("stop"), step_start("s2", "msg_2")], 0, "cli_failed"),
        ([step_start(), text("Hi"), step_finish("stop"), error("x", statusCode=500)], 0, "provider_unavailable"),
    ],
)
def test_how_a_run_fails(lines: list[object], exit_code: int, reason: ErrorReason) -> None:
    found = last_error(run(*lines, exit_code=exit_code))
    assert found.reason == reason
    assert found.details["exit_code"] == exit_code


def test_a_failure_tells_how_often_and_how_long() -> None:
    found = last_error(run(error("Rate limit reached", statusCode=429, attempts=4, retryAfter=18000)))
    assert (found.details["retries"], found.details["retry_after_ms"], found.details["http_status"]) == (3, 18000, 429)


@pytest.mark.parametrize("reason", ["stop", "content-filter", "other", "unknown"])
def test_other_reasons_end_a_run_well(reason: str) -> None:
    last = run(step_start(), text("Hi"), step_finish(reason))[-1]
    assert isinstance(last, Completed)
    assert last.stop_reason == reason


def test_before_a_session_stderr_tells_why() -> None:
    found = last_error(run(exit_code=1, stderr="\x1b[91mError: \x1b[0mSession not found\n"))
    assert found.reason == "resume_failed"
    assert last_error(run(exit_code=127, stderr="not found")).reason == "cli_not_installed"
    assert "It broke" in last_error(run(exit_code=1, stderr="\x1b[1mIt broke\n")).message


def test_in_a_session_stderr_decides_nothing() -> None:
    assert last_error(run(step_start(), exit_code=1, stderr="Session not found")).reason == "cli_failed"


@pytest.mark.parametrize(
    "odd",
    [
        line("surprise"),
        {"type": "text"},
        delta("x", kind="music"),
        step_start() | {"sessionID": 1},
        retry(delay="x"),
        tool("tool_use", status="completed", output=None),
    ],
)
def test_what_is_not_understood_is_shown(odd: dict[str, object]) -> None:
    phases = [event.phase for event in run(odd) if isinstance(event, Status)]
    assert phases == ["unparsed"]


def test_a_long_text_is_bounded_at_the_end_only() -> None:
    events = run(step_start(), *[delta("x" * 1_000_000) for _ in range(5)], step_finish())
    assert sum(len(event.text) for event in events if isinstance(event, MessageDelta)) == 5_000_000
    assert isinstance(events[-1], Completed)
    assert "…[cut: " in events[-1].final_text
    assert len(events[-1].final_text) < 4_500_000


def test_text_without_the_end_of_its_step_may_lack_its_end() -> None:
    last = run(step_start(), text("Half an ans"), exit_code=0)[-1]
    assert isinstance(last, Error)
    assert (last.reason, last.details["text"]) == ("cli_failed", "Half an ans")
    assert "may lack its end" in last.message


@pytest.mark.parametrize(
    "said",
    [
        "Error: Config file at /workspace/opencode.json is not valid JSON(C): \n--- JSONC Input ---\n{\n--- End ---\n",
        "\x1b[91mError: \x1b[0mConfiguration is invalid at /workspace/opencode.json\n↳ Expected a network, got 3\n",
    ],
)
def test_a_configuration_that_is_refused_is_named(said: str) -> None:
    [error] = OpenCodeAdapter().parser().close(1, said)
    assert isinstance(error, Error)
    assert error.reason == "cli_failed"
    assert "the repository's configuration file /workspace/opencode.json: correct it" in error.message
