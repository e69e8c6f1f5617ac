import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from orchestrator.scripted.chat import error_body, fold, read_conversation, small, stream
from orchestrator.scripted.scenarios import SIDE_ANSWER, play
from orchestrator.scripted.server import of_request
from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.wire import Ask, Piece

OPENCODE = ("bash", "edit", "read", "task", "write")
SHELL = Conversation(prompts=("x",), tools=OPENCODE)


def pieces(*steps: Step, conversation: Conversation = SHELL) -> Sequence[Piece]:
    numbers = count(1)
    ask = Ask(path="/chat/completions", body={"model": "m"})
    return list(stream(steps, conversation, ask=ask, new_id=lambda prefix: f"{prefix}{next(numbers)}"))


def chunks(*steps: Step, conversation: Conversation = SHELL) -> list[dict[str, Any]]:
    sent = [piece for piece in pieces(*steps, conversation=conversation) if isinstance(piece, bytes)]
    return [json.loads(piece.removeprefix(b"data: ")) for piece in sent if piece != b"data: [DONE]\n\n"]


def deltas(*steps: Step, conversation: Conversation = SHELL) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(*steps, conversation=conversation) if chunk.get("choices")]


def read(*messages: dict[str, Any], **body: Any) -> Conversation:
    return read_conversation(Ask(path="/v1/chat/completions", body={"messages": list(messages), **body}))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def test_text_is_streamed_in_pieces_and_ends_with_the_usage() -> None:
    seen = chunks(Text("Hello world", 6))
    assert [chunk["choices"][0]["delta"] for chunk in seen[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello "},
        {"content": "world"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in seen[:-1]] == [None, None, None, "stop"]
    assert seen[-1]["choices"] == []
    assert seen[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] < seen[-1]["usage"]["prompt_tokens"]
    assert {chunk["id"] for chunk in seen} == {"chatcmpl-1"}
    assert pieces(Text("x"))[-1] == b"data: [DONE]\n\n"


def test_thinking_is_reasoning_content_and_counted() -> None:
    assert deltas(Thinking("hm"), Text("Hi"))[1:3] == [{"reasoning_content": "hm"}, {"content": "Hi"}]
    usage = chunks(Thinking("hm"), Text("Hi"))[-1]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 1


def test_tool_calls_are_numbered_and_stop_for_the_tools() -> None:
    seen = chunks(ToolCall("shell", {"command": "ls"}), ToolCall("read", {"path": "a"}))
    calls = [call for chunk in seen for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    heads = [call for call in calls if "id" in call]
    assert [(call["index"], call["id"], call["function"]["name"]) for call in heads] == [
        (0, "call_2", "bash"),
        (1, "call_3", "read"),
    ]
    arguments = ["".join(call["function"]["arguments"] for call in calls if call["index"] == index) for index in (0, 1)]
    assert [json.loads(text) for text in arguments] == [
        {"command": "ls", "description": "Run a command"},
        {"filePath": "/workspace/a"},
    ]
    assert seen[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        (ToolCall("write", {"path": "a", "content": "b"}), "write", {"filePath": "/w/a", "content": "b"}),
        (
            ToolCall("edit", {"path": "a", "old": "b", "new": "c"}),
            "edit",
            {"filePath": "/w/a", "oldString": "b", "newString": "c"},
        ),
        (
            ToolCall("agent", {"prompt": "go"}),
            "task",
            {"description": "Ask a helper", "prompt": "go", "subagent_type": "general"},
        ),
        (ToolCall("unknown", {"x": 1}), "no_such_tool", {"x": 1}),
    ],
)
def test_opencode_is_offered_its_own_tools(call: ToolCall, name: str, arguments: dict[str, Any]) -> None:
    message = fold_of(call, conversation=Conversation(prompts=("x",), tools=OPENCODE, cwd="/w"))["choices"][0][
        "message"
    ]
    assert message["tool_calls"][0]["function"]["name"] == name
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments


def test_a_patch_is_wrapped_where_only_patches_are_taken() -> None:
    conversation = Conversation(prompts=("x",), tools=("apply_patch", "bash"))
    message = fold_of(ToolCall("edit", {"path": "a", "old": "b", "new": "c"}), conversation=conversation)["choices"][0]
    arguments = json.loads(message["message"]["tool_calls"][0]["function"]["arguments"])
    assert arguments["patchText"].startswith("*** Begin Patch\n*** Update File: a\n")


def test_a_tool_that_is_not_offered_becomes_words() -> None:
    assert (
        "offers no tool" in deltas(ToolCall("edit", {"path": "x"}), conversation=Conversation(prompts=()))[1]["content"]
    )


def test_pauses_and_cuts_are_passed_on() -> None:
    seen = pieces(Text("a"), Pause("g"), Text("b"), Cut(), Text("never"))
    assert [piece for piece in seen if not isinstance(piece, bytes)] == [Pause("g"), Cut()]
    assert seen[-1] == Cut()


def test_a_break_is_an_error_in_the_stream() -> None:
    assert chunks(Text("a"), Break("Overloaded"))[-1]["error"]["message"] == "Overloaded"


@pytest.mark.parametrize(("reason", "reported"), [("max_tokens", "length"), ("refusal", "content_filter")])
def test_reasons_have_the_protocols_names(reason: Any, reported: str) -> None:
    assert chunks(Text("a"), Stop(reason))[-2]["choices"][0]["finish_reason"] == reported


def fold_of(*steps: Step, conversation: Conversation = SHELL) -> dict[str, Any]:
    return fold([piece for piece in pieces(*steps, conversation=conversation) if isinstance(piece, bytes)])


def test_folding_gives_the_same_answer_in_one_piece() -> None:
    folded = fold_of(Thinking("hm"), Text("Hello world", 3), ToolCall("shell", {"command": "ls"}))
    assert folded["object"] == "chat.completion"
    assert folded["usage"]["total_tokens"] > 1200
    [choice] = folded["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Hello world", "hm")
    assert choice["message"]["tool_calls"][0]["id"] == "call_2"


def test_a_conversation_is_read() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}, {"type": "other"}]
    seen = read(
        {"role": "system", "content": "<env>\n  Working directory: /repo\n</env>"},
        user("first"),
        {"role": "assistant", "content": "ok"},
        user([{"type": "text", "text": "second<system-reminder>be nice</system-reminder>"}]),
        {"role": "assistant", "content": "", "tool_calls": []},
        result("one"),
        result("File not found: /x"),
        {"role": "assistant", "content": "", "tool_calls": []},
        result("three"),
        tools=tools,
    )
    assert seen.prompts == ("first", "second")
    assert (seen.rounds, seen.results) == (2, ("one", "File not found: /x", "three"))
    assert seen.failed == (False, True, False)
    assert (seen.tools, seen.cwd) == (("bash",), "/repo")


def test_a_request_for_a_title_takes_no_part_in_the_story() -> None:
    asked = read(user("Generate a title for this conversation:\n"), user("scenario: shell"))
    assert asked.prompts == ("scenario: shell",)
    assert list(play("shell", asked)) == [Text(SIDE_ANSWER)]


@pytest.mark.parametrize("body", [{}, {"messages": "x"}, {"messages": ["x"]}])
def test_what_is_no_request_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="messages"):
        read_conversation(Ask(path="/v1/chat/completions", body=body))


def test_errors_are_worded_as_openai_does() -> None:
    assert error_body(Fail(401))["error"]["code"] == "invalid_api_key"
    assert error_body(Fail(429, "slow down"))["error"]["message"] == "slow down"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_base_urls_may_end_with_v1_or_not(path: str) -> None:
    assert of_request("POST", path) is not None
    assert of_request("GET", path) is None
    listing = small("GET", "/models")
    assert listing is not None
    assert listing["data"][0]["id"] == "scripted"
    assert of_request("GET", "/v1/models") is not None
