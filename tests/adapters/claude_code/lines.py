"""Lines as Claude Code prints them, as short as they can be."""

import json
from typing import Any

from adapters.claude_code import ClaudeCodeAdapter
from orchestrator.events import AgentEvent

INIT = {"type": "system", "subtype": "init", "session_id": "s-1", "model": "m", "claude_code_version": "2", "tools": []}


def stream(event: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def start(message_id: str, parent: str | None = None) -> dict[str, Any]:
    return stream({"type": "message_start", "message": {"id": message_id}}, parent)


def begin(index: int, kind: str = "text", parent: str | None = None) -> dict[str, Any]:
    return stream({"type": "content_block_start", "index": index, "content_block": {"type": kind}}, parent)


def delta(index: int, text: str, kind: str = "text", parent: str | None = None) -> dict[str, Any]:
    return stream(
        {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", kind: text}}, parent
    )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def assistant(message_id: str | None, *blocks: Any, parent: str | None = None, **more: Any) -> dict[str, Any]:
    message = {"content": list(blocks)} | ({"id": message_id} if message_id else {})
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, **more}


def tool_use(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def tool_result(call_id: str, *, parent: str | None = None, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, **more}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": parent}


def result(said: str | None = "done", **more: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "result": said, "duration_ms": 5, **more}


def run(*lines: Any, exit_code: int | None = 0, stderr: str = "") -> list[AgentEvent]:
    parser = ClaudeCodeAdapter().parser()
    raw = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    return [*parser.feed(raw.encode()), *parser.close(exit_code, stderr)]
