"""Lines as Codex prints them, as short as they can be."""

import json
from typing import Any

from adapters.codex import CodexAdapter
from orchestrator.contract.adapter import Resumed
from orchestrator.events import AgentEvent

THREAD = "01a22c46-1840-7db1-985e-ce0c36d3d48e"
STARTED = {"type": "thread.started", "thread_id": THREAD}
TURN = {"type": "turn.started"}


def item(kind: str, item_id: str = "item_0", stage: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": f"item.{stage}", "item": {"id": item_id, "type": kind, **more}}


def said(text: str, item_id: str = "item_0") -> dict[str, Any]:
    return item("agent_message", item_id, text=text)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "message": message, **more}


def retry(attempt: int, cause: str = "stream disconnected before completion: closed") -> dict[str, Any]:
    return error(f"Reconnecting... {attempt}/4 ({cause})")


def failed(message: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": message}}


def done(**usage: int) -> dict[str, Any]:
    return {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 2, **usage}}


def run(*lines: Any, exit_code: int | None = 0, stderr: str = "", resumed: Resumed | None = None) -> list[AgentEvent]:
    parser = CodexAdapter().parser_for(resumed)
    raw = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    return [*parser.feed(raw.encode()), *parser.close(exit_code, stderr)]
