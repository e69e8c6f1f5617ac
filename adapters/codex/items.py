"""The items of a turn that are calls of tools, in today's shape and in the documented older one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.adapterkit.members import as_text


class Call(NamedTuple):
    """A tool call: its name as users know it, and what it was given."""

    name: str
    input: dict[str, Any]


class Outcome(NamedTuple):
    """What came of a tool call."""

    content: str
    is_error: bool


def _command(item: dict[str, Any]) -> Call:
    return Call("Bash", {"command": as_text(item["command"])})


def _command_outcome(item: dict[str, Any]) -> Outcome:
    output = item["aggregated_output"] if "aggregated_output" in item else item["output"]
    return Outcome(as_text(output), is_error=_failed(item) or item.get("exit_code") not in {0, None})


def _file_change(item: dict[str, Any]) -> Call:
    return Call("Edit", {"changes": [_change(change) for change in item["changes"]]})


def _file_change_outcome(item: dict[str, Any]) -> Outcome:
    lines = [f"{change['kind']} {change['path']}" for change in map(_change, item["changes"])]
    return Outcome("\n".join(lines), is_error=_failed(item))


def _change(change: dict[str, Any]) -> dict[str, Any]:
    return {**change, "path": as_text(change["path"]), "kind": as_text(change["kind"])}


def _mcp(item: dict[str, Any]) -> Call:
    arguments = item.get("arguments")
    given = arguments if isinstance(arguments, dict) else {} if arguments is None else {"arguments": arguments}
    return Call(f"mcp__{as_text(item['server'])}__{as_text(item['tool'])}", given)


def _mcp_outcome(item: dict[str, Any]) -> Outcome:
    if error := item.get("error"):
        return Outcome(as_text(error["message"]) if isinstance(error, dict) else as_text(error), is_error=True)
    result = item.get("result")
    content = result.get("content") if isinstance(result, dict) else result
    return Outcome(_blocks(content), is_error=_failed(item))


def _web_search(item: dict[str, Any]) -> Call:
    return Call("WebSearch", {"query": as_text(item.get("query") or "")})


def _web_search_outcome(item: dict[str, Any]) -> Outcome:
    return Outcome(_blocks(item.get("action")), is_error=_failed(item))


def _collab(item: dict[str, Any]) -> Call:
    given = {name: item[name] for name in ("prompt", "receiver_thread_ids") if item.get(name)}
    return Call(as_text(item["tool"]), given)


def _collab_outcome(item: dict[str, Any]) -> Outcome:
    return Outcome(_blocks(item.get("agents_states")), is_error=_failed(item))


TOOLS: dict[str, tuple[Callable[[dict[str, Any]], Call], Callable[[dict[str, Any]], Outcome]]] = {
    "command_execution": (_command, _command_outcome),
    "file_change": (_file_change, _file_change_outcome),
    "mcp_tool_call": (_mcp, _mcp_outcome),
    "web_search": (_web_search, _web_search_outcome),
    "collab_tool_call": (_collab, _collab_outcome),
}
"""By the type of the item."""


def todo_text(item: dict[str, Any]) -> str:
    """The agent's plan as a list with boxes."""
    return "\n".join(f"[{'x' if entry.get('completed') else ' '}] {as_text(entry['text'])}" for entry in item["items"])


def _failed(item: dict[str, Any]) -> bool:
    return item.get("status") in {"failed", "declined"}


def _blocks(content: Any) -> str:
    """Blocks of text joined by newlines; what is no text as JSON, or (images, sounds) as a marker."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return "\n".join(_block(block) for block in content)


def _block(block: Any) -> str:
    if isinstance(block, dict) and block.get("type") == "text":
        return as_text(block["text"])
    if isinstance(block, dict) and isinstance(block.get("data"), str):
        return f"[{block.get('type')} {block.get('mimeType') or 'unknown'}, {len(block['data']) * 3 // 4} bytes]"
    return json.dumps(block, ensure_ascii=False)
