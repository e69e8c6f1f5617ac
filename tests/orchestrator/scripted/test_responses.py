import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from orchestrator.scripted.responses import error_body, fold, read_conversation, small, stream, wants_stream
from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.wire import Ask, Piece

PLAIN = {
    "model": "m",
    "tools": [{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}],
}
CODE = {
    "model": "m",
    "input": [
        {
            "type": "additional_tools",
            "tools": [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}],
        }
    ],
}


def ask(**body: Any) -> Ask:
    return Ask(path="/v1/responses", body=body)


def talk(body: dict[str, Any]) -> Conversation:
    return read_conversation(ask(**{"input": [], **body}))


def pieces(*steps: Step, body: dict[str, Any] = PLAIN) -> Sequence[Piece]:
    numbers = count(1)
    return list(stream(steps, talk(body), ask=ask(**body), new_id=lambda prefix: f"{prefix}{next(numbers)}"))


def events(*steps: Step, body: dict[str, Any] = PLAIN) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for piece in pieces(*steps, body=body):
        if isinstance(piece, bytes):
            head, data, *rest = piece.decode().split("\n")
            assert rest == ["", ""]
            event = json.loads(data.removeprefix("data: "))
            assert head == f"event: {event['type']}"
            assert event["sequence_number"] == len(out)
            out.append(event)
    return out


def kinds(*steps: Step) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events(*steps)]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def output(text: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": "c", "output": text}


def test_text_is_streamed_in_pieces() -> None:
    assert kinds(Text("Hello world", 6)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    seen = events(Text("Hello world", 6))
    assert [event["delta"] for event in seen[4:6]] == ["Hello ", "world"]
    assert seen[-1]["response"]["output"][0]["content"][0]["text"] == "Hello world"
    assert seen[-1]["response"]["usage"]["output_tokens"] == 2


def test_text_behind_text_is_one_message_also_over_a_pause() -> None:
    steps = (Text("one "), Pause("gate"), Text("two"))
    assert Pause("gate") in pieces(*steps)
    (item,) = events(*steps)[-1]["response"]["output"]
    assert item["content"][0]["text"] == "one two"
    assert item["status"] == "completed"


def test_thinking_is_a_summary_and_an_item_of_its_own() -> None:
    response = events(Text("a"), Thinking("hm, hm"), Text("b"))[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["message", "reasoning", "message"]
    assert response["output"][1]["summary"] == [{"type": "summary_text", "text": "hm, hm"}]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 1


def test_a_function_is_called_with_json() -> None:
    seen = events(Text("I run"), ToolCall("shell", {"command": "ls"}))
    call = seen[-1]["response"]["output"][1]
    assert (call["type"], call["name"]) == ("function_call", "exec_command")
    assert json.loads(call["arguments"]) == {"cmd": "ls"}
    deltas = [event["delta"] for event in seen if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"]


def test_a_freeform_tool_is_called_with_text() -> None:
    call = events(ToolCall("edit", {"path": "a", "old": "x", "new": "y"}))[-1]["response"]["output"][0]
    assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
    assert call["input"] == "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"
    assert "namespace" not in call


def test_a_tool_of_a_namespace_is_called_with_it() -> None:
    call = events(ToolCall("shell", {"command": "ls"}), body=CODE)[-1]["response"]["output"][0]
    assert (call["type"], call["name"], call["namespace"]) == ("custom_tool_call", "exec", "functions")
    assert 'tools.exec_command({"cmd": "ls"})' in call["input"]


def test_a_tool_that_is_not_offered_is_said_so() -> None:
    (item,) = events(ToolCall("agent", {"prompt": "x"}))[-1]["response"]["output"]
    assert "no tool of the kind 'agent'" in item["content"][0]["text"]


def test_a_cut_comes_behind_the_item_or_in_it() -> None:
    whole, torn = pieces(Text("x"), Cut()), pieces(Text("x"), Cut(torn=True))
    assert whole[-1] == Cut()
    assert torn[-1] == Cut(torn=True)
    assert b"output_item.done" in bytes(whole[-2])  # type: ignore[arg-type]
    assert b"output_text.delta" in bytes(torn[-2])  # type: ignore[arg-type]


def test_a_break_fails_the_response() -> None:
    last = events(Text("x"), Break("Overloaded"))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "Overloaded"}


@pytest.mark.parametrize(
    ("reason", "kind", "why"),
    [
        ("max_tokens", "incomplete", "max_output_tokens"),
        ("refusal", "incomplete", "content_filter"),
        ("end_turn", "completed", None),
    ],
)
def test_an_answer_may_stop_early(reason: Any, kind: str, why: str | None) -> None:
    last = events(Text("x"), Stop(reason))[-1]
    assert last["type"] == f"response.{kind}"
    assert (last["response"].get("incomplete_details") or {}).get("reason") == why


def test_a_failing_answer_has_no_stream() -> None:
    with pytest.raises(TypeError):
        pieces(Fail(500))


def test_without_a_stream_the_answer_is_that_of_the_last_event() -> None:
    whole = [piece for piece in pieces(Text("Hello")) if isinstance(piece, bytes)]
    assert fold(whole) == events(Text("Hello"))[-1]["response"]


def test_what_codex_says_in_the_users_name_is_no_prompt() -> None:
    context = user("<environment_context>\n  <cwd>/w/x</cwd>\n</environment_context>")
    found = talk(
        {"input": [{"type": "message", "role": "developer", "content": "You are"}, context, user(" Do it.\n")]}
    )
    assert found.prompts == ("Do it.",)
    assert found.cwd == "/w/x"


def test_a_bare_text_is_a_prompt() -> None:
    assert talk({"input": "Do it."}).prompts == ("Do it.",)


def test_rounds_and_results_are_those_since_the_newest_prompt() -> None:
    found = talk(
        {
            "input": [
                user("one"),
                output("old"),
                user("two"),
                output("Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nfine\n"),
                output(
                    "Chunk ID: 2\nWall time: 0.1 seconds\nProcess exited with code 3\nOriginal token count: 2\nOutput:\nbad\n"
                ),
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "and"}]},
                output(
                    [
                        {"type": "input_text", "text": "Script completed\nWall time 0.4 seconds\nOutput:\n"},
                        {"type": "input_text", "text": "whole"},
                    ],
                    "custom_tool_call_output",
                ),
                output("Script failed\nWall time 0.0 seconds\nOutput:\nexit code 3", "custom_tool_call_output"),
                output('{"task": 1}'),
            ]
        }
    )
    assert found.prompts == ("one", "two")
    assert found.rounds == 2
    assert found.results == ("fine\n", "bad\n", "whole", "exit code 3", '{"task": 1}')
    assert found.failed == (False, True, False, True, False)


def test_tools_are_found_wherever_they_are_offered() -> None:
    assert talk(PLAIN).tools == ("exec_command", "apply_patch")
    assert talk({**CODE, "tools": [{"type": "web_search"}]}).tools == ("web_search", "exec")


@pytest.mark.parametrize("body", [{}, {"input": 7}, {"input": ["text"]}])
def test_a_body_that_is_no_request_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="input"):
        read_conversation(ask(**body))


@pytest.mark.parametrize(("status", "code"), [(401, "invalid_api_key"), (404, "model_not_found"), (500, None)])
def test_errors_are_worded_as_by_openai(status: int, code: str | None) -> None:
    assert error_body(Fail(status))["error"]["code"] == code


def test_a_stream_is_asked_for_and_there_are_no_small_paths() -> None:
    assert wants_stream(ask(stream=True))
    assert not wants_stream(ask())
    assert small("GET", "/v1/models") is None
