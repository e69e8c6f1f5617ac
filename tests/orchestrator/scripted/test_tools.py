from orchestrator.scripted.steps import Conversation, ToolCall
from orchestrator.scripted.tools import DIALECTS, resolve

OFFERED = Conversation(prompts=("x",), tools=("Task", "Bash", "Read", "Write", "Edit"), cwd="/workspace/")
ARGS = {"command": "ls", "path": "a/b.txt", "content": "c", "old": "o", "new": "n", "prompt": "p"}


def test_each_kind_of_tool_is_found_under_its_name() -> None:
    names = {kind: resolve(ToolCall(kind, ARGS), OFFERED) for kind in DIALECTS}
    assert {kind: found and found[0] for kind, found in names.items()} == {
        "shell": "Bash",
        "read": "Read",
        "write": "Write",
        "edit": "Edit",
        "agent": "Task",
    }


def test_paths_are_made_absolute() -> None:
    assert resolve(ToolCall("read", ARGS), OFFERED) == ("Read", {"file_path": "/workspace/a/b.txt"})


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    assert resolve(ToolCall("shell", ARGS), Conversation(prompts=("x",), tools=("Read",))) is None


def test_the_unknown_tool_is_always_called() -> None:
    assert resolve(ToolCall("unknown", {"x": 1}), OFFERED) == ("no_such_tool", {"x": 1})
