"""The OpenAI Chat Completions protocol: requests to conversations, steps to answers.  Pure.

OpenCode speaks it, as do most tools that work with "OpenAI-compatible" providers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking
from orchestrator.scripted.tools import resolve
from orchestrator.scripted.wire import CACHED_TOKENS, PROMPT_TOKENS, Ask, KeyPlace, Piece, cut

GENERATION: Final = re.compile(r"(?:/v1)?/chat/completions")
"""With and without ``/v1``: for this protocol a base URL usually ends with it."""
KEYS: Final[tuple[KeyPlace, ...]] = ("bearer",)

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_CWD = re.compile(r"[Ww]orking directory: (/\S*)")
_TITLE = re.compile(r"\AGenerate a title for this conversation:\s*\Z")
"""What OpenCode says before the user's words when it asks for a title."""
_FAILED = re.compile(r"\A(?:Error\b|File not found|File .* not found|The arguments provided to the tool are invalid)")
"""How the result of a tool that failed begins; the protocol has no flag for it."""
_REASONS = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}
_ERRORS: Final[dict[int, tuple[str, str | None, str]]] = {
    400: ("invalid_request_error", None, "Bad request"),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "forbidden", "You are not allowed to use this resource"),
    404: ("invalid_request_error", "model_not_found", "The model does not exist"),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests"),
}
"""Part of the prompt's."""


def small(method: str, path: str) -> dict[str, Any] | None:
    """The list of models where the base URL has no ``/v1``; at ``/v1/models`` it is answered for all protocols."""
    if (method, path) == ("GET", "/models"):
        model = {"id": "scripted", "object": "model", "created": 1767225600, "owned_by": "scripted"}
        return {"object": "list", "data": [model]}
    return None


def wants_stream(ask: Ask) -> bool:
    """The body says so."""
    return ask.body.get("stream") is True


def read_conversation(ask: Ask) -> Conversation:
    """The request's conversation.  Raises ValueError when the body is no Chat Completions request."""
    messages = ask.body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages: a list of messages is needed")
    prompts: list[str] = []
    rounds, results, failed, in_results = 0, list[str](), list[bool](), False
    cwd = "/workspace"
    for message in messages:
        role, text = message.get("role"), _text(message.get("content"))
        if role == "tool":
            rounds += not in_results
            results.append(text)
            failed.append(_FAILED.match(text) is not None)
        elif role in {"system", "developer"} and (found := _CWD.search(text)):
            cwd = found[1]
        elif role == "user" and (prompt := _REMINDER.sub("", text).strip()) and not _TITLE.match(prompt):
            prompts.append(prompt)
            rounds, results, failed = 0, [], []
        in_results = role == "tool"
    return Conversation(
        prompts=tuple(prompts),
        rounds=rounds,
        results=tuple(results),
        failed=tuple(failed),
        tools=tuple(_tool_names(ask.body.get("tools"))),
        cwd=cwd,
    )


def error_body(fail: Fail) -> dict[str, Any]:
    """The body of an answer with an HTTP error."""
    kind, code, text = _ERRORS.get(fail.status, ("server_error", None, "The server had an error"))
    return {"error": {"message": fail.message or text, "type": kind, "param": None, "code": code}}


def stream(
    steps: Sequence[Step], conversation: Conversation, *, ask: Ask, new_id: Callable[[str], str]
) -> Iterator[Piece]:
    """The answer as server-sent events; the usage comes last, whether it is asked for or not."""
    answer = _Answer(new_id("chatcmpl-"), model=str(ask.body.get("model")))
    yield answer.delta(role="assistant", content="")
    reason = "stop"
    for step in steps:
        if isinstance(step, Pause):
            yield step
        elif isinstance(step, Cut):
            yield step
            return
        elif isinstance(step, Break):
            yield _data({"error": {"message": step.message, "type": "server_error", "code": "server_error"}})
            return
        elif isinstance(step, Fail):
            raise TypeError("a failing answer has no stream")
        elif isinstance(step, Stop):
            reason = _REASONS[step.reason]
        elif isinstance(step, Text):
            yield from (answer.delta(content=piece) for piece in cut(step.text, step.size))
        elif isinstance(step, Thinking):
            yield from (answer.delta(reasoning_content=piece) for piece in cut(step.text, step.size))
        elif (found := resolve(step, conversation)) is None:
            yield answer.delta(content=f"This CLI offers no tool of the kind {step.tool!r}.")
        else:
            reason = "tool_calls"
            yield from answer.call(new_id("call_"), *found)
    yield answer.end(reason)
    yield answer.usage()
    yield b"data: [DONE]\n\n"


def fold(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The same answer in one piece, for a request that does not want a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    folded: dict[str, Any] = {}
    for piece in pieces[:-1]:
        chunk = json.loads(piece.removeprefix(b"data: "))
        folded = {**folded, **chunk, "choices": folded.get("choices", [])}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({**call, "function": dict(call["function"])})
                    calls[-1].pop("index")
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
            folded["choices"] = [{"index": 0, "message": message, "finish_reason": choice["finish_reason"]}]
    if calls:
        message["tool_calls"] = calls
    return {**folded, "object": "chat.completion"}


class _Answer:
    """The chunks of an answer in the making."""

    def __init__(self, answer_id: str, *, model: str) -> None:
        self._head = {"id": answer_id, "object": "chat.completion.chunk", "created": 1767225600, "model": model}
        self._deltas = 0
        self._thought = 0
        self._calls = 0

    def delta(self, **delta: Any) -> bytes:
        """A piece of the answer."""
        self._deltas += 1
        self._thought += "reasoning_content" in delta
        return self._chunk(delta, None)

    def call(self, call_id: str, name: str, arguments: dict[str, Any] | str) -> Iterator[bytes]:
        """A call of a tool; one that takes text takes it as ``patchText`` here."""
        whole = json.dumps({"patchText": arguments} if isinstance(arguments, str) else arguments)
        head = {"index": self._calls, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield self.delta(tool_calls=[head])
        for piece in cut(whole, 24):
            yield self.delta(tool_calls=[{"index": self._calls, "function": {"arguments": piece}}])
        self._calls += 1

    def end(self, reason: str) -> bytes:
        """The chunk that says why the answer ends."""
        return self._chunk({}, reason)

    def usage(self) -> bytes:
        """Made-up counts, always the same for the same script."""
        usage = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": self._deltas,
            "total_tokens": PROMPT_TOKENS + self._deltas,
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
            "completion_tokens_details": {"reasoning_tokens": self._thought},
        }
        return _data({**self._head, "choices": [], "usage": usage})

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> bytes:
        return _data({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def _data(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _tool_names(tools: Any) -> Iterator[str]:
    for tool in tools or []:
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            yield str(tool["function"].get("name"))


def _text(content: Any) -> str:
    """The text of a string or of the parts in a list."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and part.get("text"))
    return content if isinstance(content, str) else ""
