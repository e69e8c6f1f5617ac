"""Lines as OpenCode and the plugin print them, as short as they can be."""

import json
from typing import Any

from adapters.opencode import OpenCodeAdapter
from orchestrator.events import AgentEvent

SESSION = "ses_1"


def line(kind: str, *, at: int = 1000, parent: str | None = None, **members: Any) -> dict[str, Any]:
    more = {} if parent is None else {"parent": parent}
    return {"type": kind, "timestamp": at, "sessionID": SESSION, **members, **more}


def part(part_id: str, message: str = "msg_1", **members: Any) -> dict[str, Any]:
    return {"id": part_id, "messageID": message, "sessionID": SESSION, **members}


def step_start(part_id: str = "s1", message: str = "msg_1", **more: Any) -> dict[str, Any]:
    return line("step_start", part=part(part_id, message, type="step-start"), **more)


def step_finish(
    reason: str = "stop", part_id: str = "f1", message: str = "msg_1", *, cost: float = 0, **more: Any
) -> dict[str, Any]:
    tokens = {"total": 1245, "input": 900, "output": 38, "reasoning": 7, "cache": {"write": 0, "read": 300}}
    return line(
        "step_finish", part=part(part_id, message, type="step-finish", reason=reason, tokens=tokens, cost=cost), **more
    )


def delta(text: str, part_id: str = "t1", message: str = "msg_1", kind: str = "text", **more: Any) -> dict[str, Any]:
    return line("delta", part={"id": part_id, "messageID": message, "type": kind}, delta=text, **more)


def text(words: str, part_id: str = "t1", message: str = "msg_1", kind: str = "text", **more: Any) -> dict[str, Any]:
    return line(kind, part=part(part_id, message, type=kind, text=words, time={"start": 1, "end": 2}), **more)


def tool(
    kind: str, part_id: str = "p1", call: str = "call_1", name: str = "bash", *, parent: str | None = None, **state: Any
) -> dict[str, Any]:
    whole = {"status": "completed", "input": {"command": "ls"}, "output": "a\n", "metadata": {"exit": 0}, **state}
    return line(kind, part=part(part_id, type="tool", tool=name, callID=call, state=whole), parent=parent)


def retry(attempt: int = 1, **members: Any) -> dict[str, Any]:
    reported = {"attempt": attempt, "delay": 2000, "message": "Rate limit reached", "statusCode": 429, **members}
    return line("retry", **reported)


def error(message: str, name: str = "APIError", **data: Any) -> dict[str, Any]:
    return line("error", error={"name": name, "data": {"message": message, **data}})


def run(*lines: Any, exit_code: int | None = 0, stderr: str = "") -> list[AgentEvent]:
    parser = OpenCodeAdapter().parser()
    raw = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines)
    return [*parser.feed(raw.encode()), *parser.close(exit_code, stderr)]
