"""The Anthropic Messages protocol: requests to conversations, steps to answers.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking, ToolCall
from orchestrator.scripted.tools import resolve
from orchestrator.scripted.wire import CACHED_TOKENS, PROMPT_TOKENS, Ask, KeyPlace, Piece, cut

GENERATION: Final = re.compile(r"/v1/messages")
KEYS: Final[tuple[KeyPlace, ...]] = ("x-api-key", "bearer")

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_CWD = re.compile(r"[Ww]orking directory: (/\S*)")
_SIGNATURE = "c2NyaXB0ZWQ="
_ERRORS = {
    400: ("invalid_request_error", "messages: bad request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use this resource"),
    404: ("not_found_error", "model: there is no such model"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your account's rate limit"),
    529: ("overloaded_error", "Overloaded"),
}


def small(method: str, path: str) -> dict[str, Any] | None:
    """Counting tokens, and the list of models."""
    if (method, path) == ("POST", "/v1/messages/count_tokens"):
        return {"input_tokens": 900}
    if (method, path) == ("GET", "/v1/models"):
        # With what OpenAI's list has: the path is the same.
        model = {
            "type": "model",
            "id": "scripted",
            "display_name": "Scripted",
            "created_at": "2026-01-01T00:00:00Z",
            "object": "model",
            "created": 1767225600,
            "owned_by": "scripted",
        }
        return {"object": "list", "data": [model], "has_more": False, "first_id": "scripted", "last_id": "scripted"}
    return None


def wants_stream(ask: Ask) -> bool:
    """The body says so."""
    return ask.body.get("stream") is True


def read_conversation(ask: Ask) -> Conversation:
    """The request's conversation.  Raises ValueError when the body is no Messages request."""
    body = ask.body
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages: a list of messages is needed")
    prompts: list[str] = []
    rounds, results, failed = 0, list[str](), list[bool]()
    for message in messages:
        if message.get("role") != "user":
            continue
        blocks = _blocks(message.get("content"))
        found = [block for block in blocks if block.get("type") == "tool_result"]
        if found:
            rounds += 1
            results += [_text(block.get("content")) for block in found]
            failed += [block.get("is_error") is True for block in found]
        elif prompt := _REMINDER.sub("", "\n".join(_text([block]) for block in blocks)).strip():
            prompts.append(prompt)
            rounds, results, failed = 0, [], []
    cwd = _CWD.search(_text(body.get("system")))
    return Conversation(
        prompts=tuple(prompts),
        rounds=rounds,
        results=tuple(results),
        failed=tuple(failed),
        tools=tuple(str(tool.get("name")) for tool in body.get("tools") or [] if isinstance(tool, dict)),
        cwd=cwd.group(1) if cwd else "/workspace",
    )


def error_body(fail: Fail) -> dict[str, Any]:
    """The body of an answer with an HTTP error."""
    kind, text = _ERRORS.get(fail.status, ("api_error", "Internal server error"))
    return {"type": "error", "error": {"type": kind, "message": fail.message or text}}


def stream(
    steps: Sequence[Step], conversation: Conversation, *, ask: Ask, new_id: Callable[[str], str]
) -> Iterator[Piece]:
    """The answer as server-sent events.  ``new_id`` makes an id with the given prefix.

    Text behind text, with or without a pause between, goes on with the same block.
    """
    yield _event("message_start", message=_head(new_id("msg_"), str(ask.body.get("model"))))
    blocks = _Blocks()
    reason = "end_turn"
    for step in steps:
        if isinstance(step, Pause):
            yield step
        elif isinstance(step, Cut):
            if not step.torn:
                yield from blocks.end()
            yield step
            return
        elif isinstance(step, Break):
            yield from blocks.end()
            yield _event("error", error={"type": "overloaded_error", "message": step.message})
            return
        elif isinstance(step, Fail):
            raise TypeError("a failing answer has no stream")
        elif isinstance(step, Stop):
            reason = step.reason
        else:
            block, deltas = _block(step, conversation, new_id)
            reason = "tool_use" if block["type"] == "tool_use" else reason
            yield from blocks.begin(block)
            for delta in deltas:
                yield blocks.delta(delta)
    yield from blocks.end()
    ended = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=_usage(blocks.deltas))
    yield _event("message_stop")


class _Blocks:
    """The blocks of a message in the making."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None
        self.deltas = 0

    def begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        if block["type"] == "text" and self._open == "text":
            return
        yield from self.end()
        self._index += 1
        self._open = block["type"]
        yield _event("content_block_start", index=self._index, content_block=block)

    def delta(self, delta: dict[str, Any]) -> bytes:
        self.deltas += 1
        return _event("content_block_delta", index=self._index, delta=delta)

    def end(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._index)


def fold(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The same answer in one piece, for a request that does not want a stream."""
    message: dict[str, Any] = {}
    for piece in pieces:
        event = json.loads(piece.split(b"data: ", 1)[1])
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append({**event["content_block"], "_json": ""})
            case "content_block_delta":
                _add(message["content"][-1], event["delta"])
            case "content_block_stop":
                block = message["content"][-1]
                arguments = block.pop("_json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments)
            case "message_delta":
                message.update(event["delta"], usage=event["usage"])
            case _:
                continue
    return message


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    name = "_json" if delta["type"] == "input_json_delta" else delta["type"].removesuffix("_delta")
    block[name] = block.get(name, "") + delta["partial_json" if name == "_json" else name]


def _block(
    step: Text | Thinking | ToolCall, conversation: Conversation, new_id: Callable[[str], str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if isinstance(step, ToolCall):
        found = resolve(step, conversation)
        if found is not None:
            name, arguments = found
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(json.dumps(arguments), 24)]
            return {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": {}}, deltas
        step = Text(f"This CLI offers no tool of the kind {step.tool!r}.")
    if isinstance(step, Thinking):
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(step.text, step.size)]
        signature = {"type": "signature_delta", "signature": _SIGNATURE}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signature]
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in cut(step.text, step.size)]


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def _head(message_id: str, model: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(1),
    }


def _usage(output: int) -> dict[str, Any]:
    """Made-up counts, always the same for the same script; ``output`` is the number of pieces streamed."""
    return {
        "input_tokens": PROMPT_TOKENS - CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED_TOKENS,
        "output_tokens": output,
        "service_tier": "standard",
    }


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    """The text of a string or of the text blocks in a list."""
    return "\n".join(str(block["text"]) for block in _blocks(content) if block.get("text"))
