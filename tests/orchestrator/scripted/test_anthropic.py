import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from orchestrator.scripted.anthropic import error_body, fold, read_conversation, stream
from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.wire import Ask, Piece

SHELL = Conversation(prompts=("x",), tools=("Bash",))


def pieces(*steps: Step, conversation: Conversation = SHELL) -> Sequence[Piece]:
    numbers = count(1)
    return list(
        stream(
            steps,
            conversation,
            ask=Ask(path="/v1/messages", body={"model": "m"}),
            new_id=lambda prefix: f"{prefix}{next(numbers)}",
        )
    )


def read(body: dict[str, Any]) -> Conversation:
    return read_conversation(Ask(path="/v1/messages", body=body))


def events(*steps: Step, conversation: Conversation = SHELL) -> list[dict[str, Any]]:
    out = []
    for piece in pieces(*steps, conversation=conversation):
        if isinstance(piece, bytes):
            head, data, *rest = piece.decode().split("\n")
            assert rest == ["", ""]
            event = json.loads(data.removeprefix("data: "))
            assert head == f"event: {event['type']}"
            out.append(event)
    return out


def kinds(*steps: Step) -> list[str]:
    return [event["type"].removeprefix("content_block_") for event in events(*steps)]


def test_text_is_streamed_in_pieces() -> None:
    seen = events(Text("Hello world", 6))
    assert [event["type"] for event in seen] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert seen[0]["message"]["id"] == "msg_1"
    assert [event["delta"] for event in seen[2:4]] == [
        {"type": "text_delta", "text": "Hello "},
        {"type": "text_delta", "text": "world"},
    ]
    assert seen[5]["delta"]["stop_reason"] == "end_turn"


def test_thinking_ends_with_its_signature() -> None:
    block = [event["delta"]["type"] for event in events(Thinking("hm")) if "index" in event and "delta" in event]
    assert block == ["thinking_delta", "signature_delta"]


def test_a_tool_call_stops_for_the_tool() -> None:
    seen = events(Text("I run"), ToolCall("shell", {"command": "ls"}))
    starts = [event for event in seen if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [(0, "text"), (1, "tool_use")]
    assert starts[1]["content_block"] == {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}}
    arguments = "".join(event["delta"].get("partial_json", "") for event in seen if "delta" in event)
    assert json.loads(arguments)["command"] == "ls"
    assert seen[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_tool_that_is_not_offered_becomes_words() -> None:
    seen = events(ToolCall("edit", {"path": "x"}))
    assert seen[1]["content_block"]["type"] == "text"
    assert seen[-2]["delta"]["stop_reason"] == "end_turn"


def test_text_goes_on_with_the_same_block_behind_a_pause() -> None:
    assert kinds(Text("a"), Pause("gate"), Text("b")) == [
        "message_start",
        "start",
        "delta",
        "delta",
        "stop",
        "message_delta",
        "message_stop",
    ]
    assert [piece for piece in pieces(Text("a"), Pause("gate"), Text("b")) if not isinstance(piece, bytes)] == [
        Pause("gate")
    ]


def test_a_cut_comes_behind_a_block_or_in_the_middle_of_one() -> None:
    assert kinds(Text("a"), Cut(), Text("never")) == ["message_start", "start", "delta", "stop"]
    assert kinds(Text("a"), Cut(torn=True)) == ["message_start", "start", "delta"]
    assert pieces(Text("a"), Cut())[-1] == Cut()


def test_an_error_in_the_stream_ends_it() -> None:
    assert kinds(Text("a"), Break("Overloaded"), Text("never"))[-1] == "error"


def test_a_reason_to_stop_is_told() -> None:
    assert events(Text("a"), Stop("max_tokens"))[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_failing_answer_has_no_stream() -> None:
    with pytest.raises(TypeError):
        pieces(Fail(500))


def test_folded_it_is_the_same_answer() -> None:
    parts = pieces(Thinking("hm", 1), Text("Hello", 2), ToolCall("shell", {"command": "ls"}))
    message = fold([part for part in parts if isinstance(part, bytes)])
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "hm"
    assert message["content"][1] == {"type": "text", "text": "Hello"}
    assert message["content"][2]["input"]["command"] == "ls"
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (500, "api_error"),
        (503, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_the_providers_shape(status: int, kind: str) -> None:
    body = error_body(Fail(status))
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert error_body(Fail(status, "why"))["error"]["message"] == "why"


def message(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def back(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def test_what_the_cli_puts_around_a_prompt_is_left_out() -> None:
    reminder = text("<system-reminder>\nToday is a day.\nscenario: 500\n</system-reminder>\n\n")
    talk = read({"messages": [message("user", reminder, text("Do it.\n")), message("user", reminder)]})
    assert talk.prompts == ("Do it.",)


def test_rounds_count_from_the_newest_prompt() -> None:
    talk = read(
        {
            "system": [text("...\n - Primary working directory: /repo\n - more")],
            "tools": [{"name": "Bash"}, {"name": "Read"}],
            "messages": [
                message("user", text("one")),
                message("assistant", text("ok")),
                message("user", back("t0", "old")),
                message("assistant", text("ok")),
                {"role": "user", "content": "two"},
                {"role": "system", "content": "hints"},
                message("assistant", text("ok")),
                message("user", back("t1", "a"), back("t2", [text("b"), text("c")], is_error=True), text("note")),
                message("assistant", text("ok")),
                message("user", back("t3", None)),
            ],
        }
    )
    assert talk == Conversation(
        prompts=("one", "two"),
        rounds=2,
        results=("a", "b\nc", ""),
        failed=(False, True, False),
        tools=("Bash", "Read"),
        cwd="/repo",
    )
    assert talk.prompt == "two"


@pytest.mark.parametrize("body", [{}, {"messages": "hi"}, {"messages": ["hi"]}])
def test_what_is_no_request_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="messages"):
        read(body)
