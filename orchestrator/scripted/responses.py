"""The OpenAI Responses protocol: requests to conversations, steps to answers.  Pure.

Codex speaks it.  For its own models it offers its tools in an input item rather than in ``tools``, most of them behind
one tool ``exec`` that takes JavaScript; ``tools`` (the module) knows what to say to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from orchestrator.scripted.steps import Break, Conversation, Cut, Fail, Pause, Step, Stop, Text, Thinking
from orchestrator.scripted.tools import resolve
from orchestrator.scripted.wire import CACHED_TOKENS, PROMPT_TOKENS, Ask, KeyPlace, Piece, cut

GENERATION: Final = re.compile(r"/v1/responses")
KEYS: Final[tuple[KeyPlace, ...]] = ("bearer",)

_CWD = re.compile(r"<cwd>(/[^<]*)</cwd>")
_ADDED = re.compile(r"<(\w+)(?: [^>]*)?>.*</\1>", re.DOTALL)
"""What Codex says in the user's name is one element, such as ``<environment_context>``."""
_REPORT = re.compile(
    r"\A(?:Script (?P<script>completed|failed)\n|(?:Chunk ID: .*\n)?)(?:Wall time:? .*\n)"
    r"(?:Process exited with code (?P<code>-?\d+)\n)?(?:Original token count: .*\n)?(?:Output:\n|\Z)\n?"
)
"""What Codex puts before the output of a tool."""
_ERRORS: Final[dict[int, tuple[str, str | None, str]]] = {
    400: ("invalid_request_error", None, "Bad request"),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "forbidden", "You are not allowed to use this resource"),
    404: ("invalid_request_error", "model_not_found", "The model does not exist"),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests"),
}


def small(method: str, path: str) -> dict[str, Any] | None:
    """Nothing: the list of models is answered for all protocols alike."""
    del method, path
    return None


def wants_stream(ask: Ask) -> bool:
    """The body says so."""
    return ask.body.get("stream") is True


def read_conversation(ask: Ask) -> Conversation:
    """The request's conversation.  Raises ValueError when the body is no Responses request."""
    items = ask.body.get("input")
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("input: text or a list of items is needed")
    prompts: list[str] = []
    rounds, results, failed, in_results = 0, list[str](), list[bool](), False
    cwd = "/workspace"
    for item in items:
        if str(item.get("type")).endswith("_call_output"):
            rounds += not in_results
            in_results = True
            text, bad = _result(_text(item.get("output")))
            results.append(text)
            failed.append(bad)
            continue
        in_results = False
        if item.get("role") != "user":
            continue
        spoken = _text(item.get("content")).strip()
        if found := _CWD.search(spoken):
            cwd = found[1]
        if spoken and not _ADDED.fullmatch(spoken):
            prompts.append(spoken)
            rounds, results, failed = 0, [], []
    return Conversation(
        prompts=tuple(prompts),
        rounds=rounds,
        results=tuple(results),
        failed=tuple(failed),
        tools=tuple(_tools(ask)),
        cwd=cwd,
    )


def error_body(fail: Fail) -> dict[str, Any]:
    """The body of an answer with an HTTP error."""
    kind, code, text = _ERRORS.get(fail.status, ("server_error", None, "The server had an error"))
    return {"error": {"message": fail.message or text, "type": kind, "param": None, "code": code}}


def stream(
    steps: Sequence[Step], conversation: Conversation, *, ask: Ask, new_id: Callable[[str], str]
) -> Iterator[Piece]:
    """The answer as server-sent events.  Text behind text, with or without a pause between, goes on with the item."""
    answer = _Answer(new_id, model=str(ask.body.get("model")))
    yield from answer.begin()
    for step in steps:
        if isinstance(step, Pause):
            yield step
        elif isinstance(step, Cut):
            if not step.torn:
                yield from answer.end_text()
            yield step
            return
        elif isinstance(step, Break):
            yield from answer.end_text()
            yield answer.event("failed", status="failed", error={"code": "server_error", "message": step.message})
            return
        elif isinstance(step, Fail):
            raise TypeError("a failing answer has no stream")
        elif isinstance(step, Stop):
            yield from answer.end_text()
            reason = "max_output_tokens" if step.reason == "max_tokens" else "content_filter"
            if step.reason != "end_turn":
                yield answer.event("incomplete", status="incomplete", incomplete_details={"reason": reason})
                return
        elif isinstance(step, Text):
            yield from answer.text(step)
        elif isinstance(step, Thinking):
            yield from answer.thinking(step)
        elif (found := resolve(step, conversation)) is None:
            yield from answer.text(Text(f"This CLI offers no tool of the kind {step.tool!r}."))
        else:
            yield from answer.call(*found, namespace=_tools(ask).get(found[0]))
    yield from answer.end_text()
    yield answer.event("completed", status="completed")


def fold(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The same answer in one piece: the last event has it."""
    response: dict[str, Any] = json.loads(pieces[-1].split(b"data: ", 1)[1])["response"]
    return response


class _Answer:
    """The events of a response in the making."""

    def __init__(self, new_id: Callable[[str], str], *, model: str) -> None:
        self._new_id = new_id
        self._head = {"id": new_id("resp_"), "object": "response", "created_at": 1767225600, "model": model}
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._deltas = 0
        self._thought = 0
        self._open: dict[str, Any] | None = None
        """The message whose text is being streamed."""

    def begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._send(
                f"response.{kind}", response={**self._head, "status": "in_progress", "output": [], "usage": None}
            )

    def text(self, step: Text) -> Iterator[bytes]:
        if self._open is None:
            part = {"type": "output_text", "text": "", "annotations": []}
            self._open = self._item("msg_", {"type": "message", "role": "assistant", "content": []})
            yield self._added(self._open)
            self._open["content"] = [part]
            yield self._send("response.content_part.added", **self._at(self._open), content_index=0, part=part)
        yield from self._deltas_of("output_text", self._open, step.text, step.size, content_index=0)
        self._open["content"][0]["text"] += step.text

    def end_text(self) -> Iterator[bytes]:
        if self._open is not None:
            at, part = self._at(self._open), self._open["content"][0]
            yield self._send("response.output_text.done", **at, content_index=0, text=part["text"])
            yield self._send("response.content_part.done", **at, content_index=0, part=part)
            item, self._open = self._open, None
            yield self._done(item)

    def thinking(self, step: Thinking) -> Iterator[bytes]:
        yield from self.end_text()
        item = self._item("rs_", {"type": "reasoning", "summary": [], "encrypted_content": "c2NyaXB0ZWQ="})
        yield self._added(item)
        part = {"type": "summary_text", "text": step.text}
        at = {**self._at(item), "summary_index": 0}
        yield self._send("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
        yield from self._deltas_of("reasoning_summary_text", item, step.text, step.size, summary_index=0)
        self._thought += len(cut(step.text, step.size))
        yield self._send("response.reasoning_summary_text.done", **at, text=step.text)
        yield self._send("response.reasoning_summary_part.done", **at, part=part)
        item["summary"] = [part]
        yield self._done(item)

    def call(self, name: str, arguments: dict[str, Any] | str, *, namespace: str | None) -> Iterator[bytes]:
        yield from self.end_text()
        given = {"call_id": self._new_id("call_"), "name": name, **({"namespace": namespace} if namespace else {})}
        if isinstance(arguments, str):
            kind, prefix, member, text = "custom_tool_call", "ctc_", "input", arguments
        else:
            kind, prefix, member, text = "function_call", "fc_", "arguments", json.dumps(arguments)
        name_of_events = "custom_tool_call_input" if member == "input" else "function_call_arguments"
        item = self._item(prefix, {"type": kind, member: "", **given})
        yield self._added(item)
        yield from self._deltas_of(name_of_events, item, text, 24)
        yield self._send(f"response.{name_of_events}.done", **self._at(item), **{member: text})
        item[member] = text
        yield self._done(item)

    def event(self, kind: str, **members: Any) -> bytes:
        """The last event."""
        usage = {
            "input_tokens": PROMPT_TOKENS,
            "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
            "output_tokens": self._deltas,
            "output_tokens_details": {"reasoning_tokens": self._thought},
            "total_tokens": PROMPT_TOKENS + self._deltas,
        }
        response = {**self._head, "output": self._items, "usage": usage, "error": None, **members}
        return self._send(f"response.{kind}", response=response)

    def _item(self, prefix: str, members: dict[str, Any]) -> dict[str, Any]:
        return {"id": self._new_id(prefix), **members, "status": "in_progress"}

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._send("response.output_item.added", output_index=len(self._items), item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        item["status"] = "completed"
        sent = self._send("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return sent

    def _deltas_of(self, kind: str, item: dict[str, Any], text: str, size: int, **where: int) -> Iterator[bytes]:
        for piece in cut(text, size):
            self._deltas += 1
            yield self._send(f"response.{kind}.delta", **self._at(item), **where, delta=piece)

    def _at(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self._items)}

    def _send(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()


def _tools(ask: Ask) -> dict[str, str | None]:
    """Names of the tools offered, each with the namespace that a call must name."""
    listed = list(ask.body.get("tools") or [])
    for item in ask.body.get("input") or []:
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            listed += item.get("tools") or []
    found: dict[str, str | None] = {}
    for tool in listed:
        if not isinstance(tool, dict):
            continue
        if tool.get("type") == "namespace":
            found |= {str(inner.get("name")): tool.get("name") for inner in tool.get("tools") or []}
        else:
            found[str(tool.get("name") or tool.get("type"))] = None
    return found


def _result(text: str) -> tuple[str, bool]:
    """The output of a tool without Codex's report, and whether it failed."""
    report = _REPORT.match(text)
    if report is None:
        return text, False
    return text[report.end() :], report["script"] == "failed" or report["code"] not in {None, "0"}


def _text(content: Any) -> str:
    """The text of a string or of the parts in a list."""
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict) and part.get("text"))
    return content if isinstance(content, str) else ""
