import io
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli.ui.render import Transcript, short_input
from tests.fakes.api_server import HELLO, Step, make_events
from tests.orchestrator.cli.ui.test_safe import HOSTILE


def render(steps: list[Step], *, styles: bool = False, **options: Any) -> str:
    console = Console(
        record=True, width=40, file=io.StringIO(), force_terminal=styles, color_system="standard" if styles else None
    )
    transcript = Transcript(console, **options)
    for event in make_events("run_1", steps):
        transcript.feed(event)
    transcript.close()
    return console.export_text(styles=styles)


def test_a_whole_run() -> None:
    assert render(HELLO) == (
        "· waiting, 1 run ahead in the queue\n"
        "· starting the container\n"
        "· running\n"
        "· session sess-1, scripted\n"
        "I look first.\n"
        "Looking.\n"
        "● Bash  ls -la\n"
        "  └ a.txt\n"
        "    b.txt\n"
        "All done.\n"
    )


def test_thinking_is_dim_and_the_answer_is_not() -> None:
    text = render([("thinking", {"text": "hm"}), ("message_delta", {"text": "yes", "message_id": "m"})], styles=True)
    assert "\x1b[2;3mhm\x1b[0m" in text
    assert text.endswith("yes\n")


def test_deltas_keep_every_blank_however_long_the_line() -> None:
    words = [f"word{i} " for i in range(200)]
    steps: list[Step] = [("message_delta", {"text": word, "message_id": "m"}) for word in words]
    steps.append(("message_delta", {"text": "x" * 100 + "   ", "message_id": "m"}))
    steps.append(("message_delta", {"text": "end", "message_id": "m"}))
    assert render(steps) == "".join(words) + "x" * 100 + "   end\n"


def test_the_final_text_is_printed_unless_it_was_streamed() -> None:
    done: dict[str, Any] = {"final_text": "The answer.", "tokens": {}, "duration_ms": 1}
    assert render([("completed", done)]) == "The answer.\n"
    streamed: list[Step] = [
        ("message_delta", {"text": "Before.", "message_id": "m1"}),
        ("message_delta", {"text": "The ", "message_id": "m2"}),
        ("message_delta", {"text": "answer.\n", "message_id": "m2"}),
        ("completed", done),
    ]
    assert render(streamed).count("The answer.") == 1
    assert render(streamed[:1] + streamed[-1:]) == "Before.\nThe answer.\n"


def test_long_results_are_cut() -> None:
    content = "\n".join(f"line {i}" for i in range(100)) + "\n" + "y" * 500
    text = render(
        [
            ("tool_use", {"tool_call_id": "t", "name": "Read", "input": {"file_path": "/a"}}),
            ("tool_result", {"tool_call_id": "t", "content": content, "is_error": False}),
        ],
        result_lines=3,
    )
    assert "line 2" in text
    assert "line 3" not in text
    assert "… 98 more lines" in text
    wide = render([("tool_result", {"tool_call_id": "t", "content": "y" * 500, "is_error": False})])
    assert len(max(wide.splitlines(), key=len)) < 220


def test_a_failed_and_an_empty_result() -> None:
    assert "  └ failed\n    err\n" in render(
        [
            ("tool_use", {"tool_call_id": "t", "name": "Bash", "input": {}}),
            ("tool_result", {"tool_call_id": "t", "content": "err\n", "is_error": True}),
        ]
    )
    assert "(nothing printed)" in render(
        [
            ("tool_use", {"tool_call_id": "t", "name": "Bash", "input": {}}),
            ("tool_result", {"tool_call_id": "t", "content": "", "is_error": False}),
        ]
    )


def test_results_of_parallel_calls_say_whose_they_are() -> None:
    text = render(
        [
            ("tool_use", {"tool_call_id": "t1", "name": "Read", "input": {"file_path": "a"}}),
            ("tool_use", {"tool_call_id": "t2", "name": "Grep", "input": {"pattern": "b"}}),
            ("tool_result", {"tool_call_id": "t1", "content": "A", "is_error": False}),
        ]
    )
    assert text == "● Read  a\n● Grep  b\n  └ Read:\n    A\n"


def test_sub_agents_are_indented_by_their_depth() -> None:
    text = render(
        [
            ("tool_use", {"tool_call_id": "t1", "name": "Task", "input": {"description": "look"}}),
            ("message_delta", {"text": "one\ntwo", "message_id": "s1"}, "t1"),
            ("tool_use", {"tool_call_id": "t2", "name": "Task", "input": {"description": "deeper"}}, "t1"),
            ("thinking", {"text": "hm"}, "t2"),
            ("tool_result", {"tool_call_id": "t2", "content": "r", "is_error": False}, "t1"),
            ("message_delta", {"text": "back", "message_id": "m1"}),
            ("thinking", {"text": "whose"}, "unknown"),
        ]
    )
    assert text == ("● Task  look\n│ one\n│ two\n│ ● Task  deeper\n│ │ hm\n│   └ r\nback\n│ whose\n")


def test_what_the_orchestrator_says() -> None:
    text = render(
        [
            ("status", {"phase": "retrying", "attempt": 2, "delay_ms": 1500, "cause": "overloaded"}),
            ("status", {"phase": "egress_denied", "host": "evil.example", "port": 443}),
            ("status", {"phase": "egress_denied", "host": "evil.example", "port": 443, "reason": "no", "count": 3}),
            ("status", {"phase": "egress_allowed", "host": "pypi.org", "port": None}),
            ("status", {"phase": "diagnostic", "stderr": "warn\nings"}),
            ("status", {"phase": "unparsed", "line": "gibber ish"}),
            ("status", {"phase": "limit_warning", "limit": "memory"}),
            ("status", {"phase": "heartbeat"}),
            ("status", {"phase": "queued", "position": 0}),
            ("status", {"phase": "queued", "position": 3}),
            ("status", {"phase": "queued", "position": 0, "waiting_for": "home"}),
            ("status", {"phase": "something_new", "x": 1}),
            ("novelty", {"y": 2}),
            ("error", {"reason": "timeout", "message": "after 300 s", "details": {}}),
        ]
    )
    assert text.splitlines() == [
        "· the provider is asked again (attempt 2) in 1.5 s: overloaded",
        "· the agent was kept from reaching evil.example:443",
        "· the agent was kept from reaching evil.example:443 (3 times): no",
        "· the run may reach pypi.org at port 443 or 80 now",
        "· stderr: warn ings",
        "· a line that was not understood: gibber ish",
        '· limit warning {"limit": "memory"}',
        "· waiting, 3 runs ahead in the queue",
        "· waiting until the account is free",
        '· something new {"x": 1}',
        '· novelty {"y": 2}',
        "✗ timeout: after 300 s",
    ]


def everywhere(text: str) -> list[Step]:
    return [
        ("session_started", {"session_id": text, "model": text}),
        ("thinking", {"text": text}),
        ("message_delta", {"text": text, "message_id": text}),
        ("tool_use", {"tool_call_id": text, "name": text, "input": {"command": text}}),
        ("tool_use", {"tool_call_id": "t", "name": "n", "input": {text: [text]}}),
        ("tool_result", {"tool_call_id": text, "content": text, "is_error": True}),
        ("status", {"phase": text, text: text}),
        ("status", {"phase": "retrying", "cause": text, "attempt": text, "delay_ms": text}),
        ("status", {"phase": "diagnostic", "stderr": text}),
        ("status", {"phase": "unparsed", "line": text}),
        ("status", {"phase": "egress_denied", "host": text, "port": text, "reason": text, "count": text}),
        ("status", {"phase": "egress_allowed", "host": text, "port": text}),
        (text, {text: text}),
        ("completed", {"final_text": "other " + text, "tokens": {}}),
        ("error", {"reason": text, "message": text}),
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_field_of_any_event_reaches_the_terminal_as_it_is(text: str) -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    transcript = Transcript(console)
    for event in make_events("run_1", everywhere("A" + text + "Z")):
        transcript.feed(event)
    written = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert all(char in "\t\n" or char.isprintable() for char in written), repr(written)


def test_a_sequence_cut_over_two_deltas_does_not_act() -> None:
    text = render(
        [
            ("message_delta", {"text": "a\x1b", "message_id": "m"}),
            ("message_delta", {"text": "]0;t\x07b", "message_id": "m"}),
        ]
    )
    assert "\x1b" not in text
    assert text.startswith("a")


def test_markup_is_text() -> None:
    assert render([("message_delta", {"text": "[bold red]x[/] :smile: [link=http://e]", "message_id": "m"})]) == (
        "[bold red]x[/] :smile: [link=http://e]\n"
    )


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"kind": "tool_use"},
        {"kind": "tool_result", "data": {"content": None}},
        {"kind": "status", "data": {}},
        {"kind": "completed", "data": {"final_text": 3}},
        {"kind": "message_delta", "data": {"text": ["x"]}},
        {"kind": "error", "data": {"message": {"a": 1}}},
        {"kind": 7, "data": {"a": 1}},
    ],
)
def test_a_malformed_event_is_no_crash(event: dict[str, Any]) -> None:
    Transcript(Console(file=io.StringIO())).feed(event)


def test_short_input_takes_what_tells_most() -> None:
    assert short_input({"description": "d", "command": "ls\n -l"}) == "ls -l"
    assert short_input({"a": 1}) == '{"a": 1}'
    assert short_input({}) == ""
    assert short_input(["x"]) == '["x"]'
    assert len(short_input({"command": "x" * 5000})) == 120
