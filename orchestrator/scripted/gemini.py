"""The Gemini API (generateContent): requests to conversations, steps to answers.  Pure.

Google's API has no ids for calls, and reports its token counts with every piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.tools import resolve
from orchestrator.scripted.wire import CACHED_TOKENS, PROMPT_TOKENS, Ask, KeyPlace, Piece, cut

_MODELS = r"/v1(?:beta|alpha)?/models"
GENERATION: Final = re.compile(rf"{_MODELS}/[\w.-]+:(?:streamG|g)enerateContent")
KEYS: Final[tuple[KeyPlace, ...]] = ("x-goog-api-key", "?key")

_SMALL = re.compile(rf"{_MODELS}(?:/(?P<model>[\w.-]+)(?P<count>:countTokens)?)?")
_CONTEXT = re.compile(r"<(session_context|hook_context|system-reminder)>.*?</\1>", re.DOTALL)
_CWD = re.compile(r"Workspace Directories:\W+(/\S*)")
_OUTPUT = re.compile(
    r"\A(?:<untrusted_context>\s*)?Output: (.*?)\n(?:Error|Exit Code|Signal|Background PIDs|Process Group PGID): ",
    re.DOTALL,
)
"""How the CLI words what a command has printed."""
_EXIT_CODE = re.compile(r"^Exit Code: [1-9]", re.MULTILINE)
_STOPS = {"end_turn": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_WRONG_KEY = "API key not valid"


def small(method: str, path: str) -> dict[str, Any] | None:
    """Counting tokens, the list of models, and one model."""
    found = _SMALL.fullmatch(path)
    # "/v1/models" alone may be another provider's.
    if found is None or (path == "/v1/models" and method == "GET"):
        return None
    if found["count"]:
        return {"totalTokens": 900} if method == "POST" else None
    if method != "GET":
        return None
    model = {
        "name": f"models/{found['model'] or 'scripted'}",
        "displayName": "Scripted",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    return model if found["model"] else {"models": [model]}


def wants_stream(ask: Ask) -> bool:
    """The path says so."""
    return ask.path.endswith(":streamGenerateContent")


def read_conversation(ask: Ask) -> Conversation:
    """The request's conversation.  Raises ValueError when the body is no request of this API."""
    contents = ask.body.get("contents")
    if not isinstance(contents, list) or not all(isinstance(content, dict) for content in contents):
        raise ValueError("contents: a list of contents is needed")
    prompts: list[str] = []
    rounds, results, failed, cwd = 0, list[str](), list[bool](), "/workspace"
    for content in contents:
        if content.get("role") != "user":
            continue
        parts = [part for part in content.get("parts") or [] if isinstance(part, dict)]
        text = "\n".join(str(part["text"]) for part in parts if part.get("text"))
        cwd = found.group(1) if (found := _CWD.search(text)) else cwd
        responses = [part["functionResponse"] for part in parts if isinstance(part.get("functionResponse"), dict)]
        if responses:
            rounds += 1
            outcomes = [_result(response.get("response")) for response in responses]
            results += [text for text, _ in outcomes]
            failed += [bad for _, bad in outcomes]
        elif prompt := _CONTEXT.sub("", text).strip():
            prompts.append(prompt)
            rounds, results, failed = 0, [], []
    groups = [group for group in ask.body.get("tools") or [] if isinstance(group, dict)]
    tools = [tool for group in groups for tool in group.get("functionDeclarations") or [] if isinstance(tool, dict)]
    return Conversation(
        prompts=tuple(prompts),
        rounds=rounds,
        results=tuple(results),
        failed=tuple(failed),
        tools=tuple(str(tool.get("name")) for tool in tools),
        cwd=cwd,
    )


def _result(response: Any) -> tuple[str, bool]:
    """What a tool gave back, as text, and whether it failed."""
    if not isinstance(response, dict):
        return "", False
    if "error" in response:
        return str(response["error"]), True
    text = str(response.get("output", ""))
    found = _OUTPUT.search(text)
    return (found.group(1) if found else text), _EXIT_CODE.search(text) is not None


def error_body(fail: Fail) -> dict[str, Any]:
    """The body of an answer with an HTTP error."""
    status = _STATUSES.get(fail.status, "UNAVAILABLE" if fail.status >= 500 else "FAILED_PRECONDITION")
    error: dict[str, Any] = {"code": fail.status, "message": fail.message or f"Scripted {status}", "status": status}
    if _WRONG_KEY in error["message"]:
        domain = "googleapis.com"
        error["details"] = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": domain,
                "metadata": {"service": f"generativelanguage.{domain}"},
            }
        ]
    return {"error": error}


def stream(
    steps: Sequence[Step], conversation: Conversation, *, ask: Ask, new_id: Callable[[str], str]
) -> Iterator[Piece]:
    """The answer as server-sent events.  A request that wants JSON is a side request, and gets a little of it."""
    chunks = _Chunks(model=ask.path.rpartition("/")[2].partition(":")[0], response_id=new_id(""))
    if (schema := _wanted_json(ask.body)) is not None:
        yield chunks.part({"text": json.dumps(_sample(schema))}, finish="STOP")
        return
    reason = "STOP"
    for step in steps:
        if isinstance(step, Pause):
            yield step
        elif isinstance(step, Cut):
            if step.torn:
                piece = chunks.part({"text": "never sent"})
                yield piece[: len(piece) // 2]
            yield step
            return
        elif isinstance(step, Break):
            yield _event(error_body(Fail(503, step.message)))
            return
        elif isinstance(step, Fail):
            raise TypeError("a failing answer has no stream")
        elif isinstance(step, Stop):
            reason = _STOPS[step.reason]
        else:
            for part in _parts(step, conversation):
                yield chunks.part(part)
    yield chunks.part({"text": ""}, finish=reason)


def _parts(step: Text | Thinking | ToolCall, conversation: Conversation) -> list[dict[str, Any]]:
    if isinstance(step, ToolCall):
        found = resolve(step, conversation)
        if found is not None:
            return [{"functionCall": {"name": found[0], "args": found[1]}, "thoughtSignature": "c2NyaXB0ZWQ="}]
        step = Text(f"This CLI offers no tool of the kind {step.tool!r}.")
    if isinstance(step, Thinking):
        return [{"text": step.text, "thought": True}]
    return [{"text": piece} for piece in cut(step.text, step.size)]


class _Chunks:
    """The pieces of one answer, with made-up counts that are the same for the same script."""

    def __init__(self, *, model: str, response_id: str) -> None:
        self._model = model
        self._id = response_id
        self._output = 0
        self._thoughts = 0

    def part(self, part: dict[str, Any], *, finish: str | None = None) -> bytes:
        self._thoughts += 5 * bool(part.get("thought"))
        self._output += not part.get("thought")
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        usage = {
            "promptTokenCount": PROMPT_TOKENS,
            "cachedContentTokenCount": CACHED_TOKENS,
            "candidatesTokenCount": self._output,
            "thoughtsTokenCount": self._thoughts,
            "totalTokenCount": PROMPT_TOKENS + self._output + self._thoughts,
        }
        return _event(
            {"candidates": [candidate], "usageMetadata": usage, "modelVersion": self._model, "responseId": self._id}
        )


def fold(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The same answer in one piece, for a request that does not want a stream."""
    bodies = [json.loads(piece.split(b"data: ", 1)[1]) for piece in pieces]
    parts: list[dict[str, Any]] = []
    for body in bodies:
        [part] = body["candidates"][0]["content"]["parts"]
        if parts and part.keys() == parts[-1].keys() == {"text"}:
            parts[-1] = {"text": parts[-1]["text"] + part["text"]}
        else:
            parts.append(part)
    whole: dict[str, Any] = bodies[-1]
    whole["candidates"][0]["content"]["parts"] = parts
    return whole


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\r\n\r\n".encode()


def _wanted_json(body: dict[str, Any]) -> Any:
    """The schema of the JSON that is wanted; None when it is none."""
    config = body.get("generationConfig")
    if not isinstance(config, dict) or config.get("responseMimeType") != "application/json":
        return None
    return config.get("responseJsonSchema") or config.get("responseSchema") or {}


def _sample(schema: Any) -> Any:
    """A value of a JSON schema: for each choice the first, for each number 0, for each text "scripted"."""
    schema = schema if isinstance(schema, dict) else {}
    if choices := schema.get("enum"):
        return choices[0]
    match str(schema.get("type", "object")).lower():
        case "string":
            return "scripted"
        case "number" | "integer":
            return 0
        case "boolean":
            return False
        case "array":
            return []
        case _:
            properties = schema.get("properties")
            return {name: _sample(value) for name, value in properties.items()} if isinstance(properties, dict) else {}
