"""What the CLIs call their tools, and the arguments that these take.

A CLI offers its tools in each request, so the first entry whose name is offered is the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.scripted import codex_tools
from orchestrator.scripted.steps import Conversation, ToolCall, ToolKind

Arguments = dict[str, Any] | str
"""Of a tool; text for one that takes no JSON."""

Build = Callable[[dict[str, Any], Callable[[str], str]], Arguments]
"""From abstract arguments, and a function that makes a path absolute, to those of the tool."""

DIALECTS: dict[ToolKind, list[tuple[str, Build]]] = {
    "shell": [
        ("Bash", lambda args, _: {"command": args["command"], "description": "Run a command"}),
        ("exec_command", lambda args, _: {"cmd": args["command"]}),
        ("exec", codex_tools.run),
        ("bash", lambda args, _: {"command": args["command"], "description": "Run a command"}),
        ("run_shell_command", lambda args, _: {"command": args["command"], "description": "Run a command"}),
    ],
    "read": [
        ("Read", lambda args, path: {"file_path": path(args["path"])}),
        ("exec_command", codex_tools.read_command),
        ("exec", codex_tools.read),
        ("read", lambda args, path: {"filePath": path(args["path"])}),
        ("read_file", lambda args, path: {"file_path": path(args["path"])}),
    ],
    "write": [
        ("Write", lambda args, path: {"file_path": path(args["path"]), "content": args["content"]}),
        ("apply_patch", codex_tools.write_patch),
        ("exec", codex_tools.write),
        ("write", lambda args, path: {"filePath": path(args["path"]), "content": args["content"]}),
        ("write_file", lambda args, path: {"file_path": path(args["path"]), "content": args["content"]}),
    ],
    "edit": [
        (
            "Edit",
            lambda args, path: {
                "file_path": path(args["path"]),
                "old_string": args["old"],
                "new_string": args["new"],
                "replace_all": False,
            },
        ),
        ("apply_patch", codex_tools.edit_patch),
        ("exec", codex_tools.edit),
        (
            "edit",
            lambda args, path: {"filePath": path(args["path"]), "oldString": args["old"], "newString": args["new"]},
        ),
        (
            "replace",
            lambda args, path: {
                "file_path": path(args["path"]),
                "old_string": args["old"],
                "new_string": args["new"],
                "instruction": "Change the text",
            },
        ),
    ],
    "agent": [
        (
            name,
            lambda args, _: {
                "description": "Ask a helper",
                "prompt": args["prompt"],
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        )
        for name in ("Agent", "Task")
    ]
    + [
        (
            "task",
            lambda args, _: {"description": "Ask a helper", "prompt": args["prompt"], "subagent_type": "general"},
        )
    ],
}


def resolve(call: ToolCall, conversation: Conversation) -> tuple[str, Arguments] | None:
    """Name and arguments of the tool that does it; None when none is offered."""
    if call.tool == "unknown":
        return "no_such_tool", dict(call.args)
    for name, build in DIALECTS[call.tool]:
        if name in conversation.tools:
            return name, build(call.args, lambda path: f"{conversation.cwd.rstrip('/')}/{path}")
    return None
