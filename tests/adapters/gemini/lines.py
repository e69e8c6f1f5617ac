"""Lines as the CLI prints them, and what a parser makes of them."""

from __future__ import annotations

import json
from typing import Any

from adapters.gemini import GeminiAdapter
from orchestrator.events import AgentEvent
from orchestrator.testing.conformance import Recording, play

SESSION = "e5bfc70c-91f8-48c5-ba42-3f004c747901"
STATS = {
    "total_tokens": 1252,
    "input_tokens": 1200,
    "output_tokens": 45,
    "cached": 300,
    "input": 900,
    "duration_ms": 413,
    "tool_calls": 0,
    "models": {},
}


def init(**more: Any) -> dict[str, Any]:
    return {"type": "init", "session_id": SESSION, "model": "flash", **more}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, "delta": True, **more}


def call(call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "tool_id": call_id,
        "tool_name": "run_shell_command",
        "parameters": {"command": "x"},
        **more,
    }


def result(call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_id": call_id, "status": "success", **more}


def end(**more: Any) -> dict[str, Any]:
    return {"type": "result", "status": "success", "stats": STATS, **more}


def failed(message: str, **more: Any) -> dict[str, Any]:
    return end(status="error", error={"type": "unknown", "message": message}, **more)


def run(*lines: dict[str, Any] | bytes, code: int | None = 0, stderr: str = "") -> list[AgentEvent]:
    """The events of a whole run."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    stdout = b"".join(line + b"\n" for line in raw)
    return play(GeminiAdapter(), Recording(name="lines", stdout=stdout, exit_code=code, stderr_tail=stderr))
