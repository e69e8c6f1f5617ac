import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from orchestrator.scripted import ScriptedProvider
from orchestrator.scripted.gemini import error_body, fold, read_conversation, small, stream, wants_stream
from orchestrator.scripted.server import of_request
from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.wire import Ask, Piece

PATH = "/v1beta/models/gemini-x:streamGenerateContent"
SHELL = Conversation(prompts=("x",), tools=("run_shell_command", "replace"), cwd="/workspace")
CONTEXT = "<session_context>\n- **Workspace Directories:**\n  - /work/here\n- more\n</session_context>"


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text} for text in texts]}


def response(**more: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"functionResponse": {"name": "run_shell_command", "response": more}}]}


def read(*contents: dict[str, Any], **body: Any) -> Conversation:
    return read_conversation(Ask(path=PATH, body={"contents": list(contents), **body}))


def pieces(*steps: Step, body: dict[str, Any] | None = None) -> Sequence[Piece]:
    return list(stream(steps, SHELL, ask=Ask(path=PATH, body=body or {}), new_id=lambda prefix: f"{prefix}1"))


def chunks(*steps: Step, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    raw = [piece for piece in pieces(*steps, body=body) if isinstance(piece, bytes)]
    assert all(piece.startswith(b"data: ") and piece.endswith(b"\r\n\r\n") for piece in raw)
    return [json.loads(piece[6:]) for piece in raw]


def parts(*steps: Step, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [part for chunk in chunks(*steps, body=body) for part in chunk["candidates"][0]["content"]["parts"]]


def test_text_is_streamed_in_pieces_and_the_last_has_the_reason() -> None:
    seen = chunks(Text("Hello world", 6))
    assert [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in seen] == ["Hello ", "world", ""]
    assert [chunk["candidates"][0].get("finishReason") for chunk in seen] == [None, None, "STOP"]
    assert seen[-1]["modelVersion"] == "gemini-x"
    usage = seen[-1]["usageMetadata"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]


def test_thoughts_and_calls() -> None:
    seen = parts(
        Thinking("Hm."), ToolCall("shell", {"command": "ls"}), ToolCall("edit", {"path": "a", "old": "x", "new": "y"})
    )
    assert seen[0] == {"text": "Hm.", "thought": True}
    assert seen[1]["functionCall"] == {
        "name": "run_shell_command",
        "args": {"command": "ls", "description": "Run a command"},
    }
    assert seen[2]["functionCall"]["args"]["file_path"] == "/workspace/a"


def test_a_tool_that_is_not_offered_becomes_a_remark() -> None:
    assert "offers no tool" in "".join(part["text"] for part in parts(ToolCall("agent", {"prompt": "x"})))


@pytest.mark.parametrize(("reason", "reported"), [("max_tokens", "MAX_TOKENS"), ("refusal", "SAFETY")])
def test_other_endings(reason: Any, reported: str) -> None:
    assert chunks(Text("x"), Stop(reason))[-1]["candidates"][0]["finishReason"] == reported


def test_pauses_cuts_and_errors_in_the_stream() -> None:
    assert [type(piece) for piece in pieces(Text("a"), Pause("g"), Text("b"), Cut())] == [bytes, Pause, bytes, Cut]
    torn = pieces(Text("a"), Cut(torn=True))
    assert isinstance(torn[1], bytes)
    assert not torn[1].endswith(b"\n")
    assert chunks(Text("a"), Break("busy"))[-1] == {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}
    with pytest.raises(TypeError):
        pieces(Fail(500))


def test_a_request_for_json_gets_json_whatever_the_script() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "reasoning": {"type": "string"},
            "choice": {"enum": ["flash", "pro"]},
            "score": {"type": "integer"},
            "sure": {"type": "boolean"},
            "list": {"type": "array"},
        },
    }
    for name in ("responseJsonSchema", "responseSchema"):
        body = {"generationConfig": {"responseMimeType": "application/json", name: schema}}
        [part] = parts(Pause("g"), Text("no JSON"), body=body)
        assert json.loads(part["text"]) == {
            "reasoning": "scripted",
            "choice": "flash",
            "score": 0,
            "sure": False,
            "list": [],
        }


def test_the_whole_answer_in_one_piece() -> None:
    raw = [piece for piece in pieces(Thinking("Hm."), Text("Hello world", 6)) if isinstance(piece, bytes)]
    [candidate] = fold(raw)["candidates"]
    assert candidate["content"]["parts"] == [{"text": "Hm.", "thought": True}, {"text": "Hello world"}]
    assert candidate["finishReason"] == "STOP"


def test_prompts_without_what_the_cli_puts_around_them() -> None:
    seen = read(user(CONTEXT, "one"), {"role": "model", "parts": [{"text": "answer"}]}, user("two"))
    assert (seen.prompts, seen.rounds, seen.cwd) == (("one", "two"), 0, "/work/here")


def test_rounds_results_and_failures() -> None:
    wrapped = "<untrusted_context>\nOutput: out\nerr\nExit Code: 3\nProcess Group PGID: 20\n</untrusted_context>"
    two = {"role": "user", "parts": response(output="a")["parts"] + response(output="b")["parts"]}
    seen = read(user("x"), response(output=wrapped), two, response(error="no such file"))
    assert seen.rounds == 3
    assert seen.results == ("out\nerr", "a", "b", "no such file")
    assert seen.failed == (True, False, False, True)


def test_tools_are_read_from_all_groups() -> None:
    tools = [
        {"functionDeclarations": [{"name": "a"}, {"name": "b"}]},
        {"googleSearch": {}},
        {"functionDeclarations": [{"name": "c"}]},
    ]
    assert read(user("x"), tools=tools).tools == ("a", "b", "c")


def test_errors_are_worded_as_google_does() -> None:
    assert error_body(Fail(429))["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert "details" not in error_body(Fail(400))["error"]
    refused = error_body(Fail(400, "API key not valid. Please pass a valid API key."))["error"]
    assert refused["details"][0]["reason"] == "API_KEY_INVALID"


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", PATH, True),
        ("POST", "/v1/models/m:generateContent", True),
        ("POST", "/v1beta/models/m:countTokens", True),
        ("GET", "/v1beta/models", True),
        ("GET", "/v1beta/models/m", True),
        ("POST", "/v1beta/models/m:other", False),
        ("GET", PATH, False),
        ("POST", "/v1beta/files", False),
    ],
)
def test_paths(method: str, path: str, known: bool) -> None:
    assert (of_request(method, path) is not None) is known
    assert wants_stream(Ask(path=path)) is path.endswith(":streamGenerateContent")


def test_the_list_of_models_of_another_provider_is_not_ours() -> None:
    assert small("GET", "/v1/models") is None


async def test_over_http_with_the_key_in_header_or_query() -> None:
    body = {"contents": [user("hi")]}
    async with ScriptedProvider(api_key="k") as provider, aiohttp.ClientSession() as client:
        url = f"{provider.base_url}/s/text{PATH}?alt=sse"
        async with client.post(url, json=body, headers={"x-goog-api-key": "k"}) as answer:
            assert answer.status == 200
            assert "Hello" in await answer.text()
        async with client.post(f"{url}&key=k", json=body) as answer:
            assert answer.status == 200
        async with client.post(url, json=body, headers={"x-goog-api-key": "wrong"}) as answer:
            assert answer.status == 401
            assert (await answer.json())["error"]["status"] == "UNAUTHENTICATED"
        assert [request.scenario for request in provider.requests] == ["text", "text", None]
