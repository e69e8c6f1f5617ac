import json

import pytest

from orchestrator.scripted import codex_tools
from orchestrator.scripted.steps import Conversation, ToolCall, ToolKind
from orchestrator.scripted.tools import resolve

ARGS = {"command": "echo 'a \"b\"'", "path": "a b.txt", "content": "one\ntwo\n", "old": "one\ntwo", "new": "three"}


def test_a_command_in_javascript_is_quoted_and_fails_as_the_command_does() -> None:
    script = codex_tools.run(ARGS, str)
    assert f"tools.exec_command({json.dumps({'cmd': ARGS['command']})})" in script
    assert "throw new Error" in script


def test_reading_is_a_command_with_the_path_quoted() -> None:
    assert codex_tools.read_command(ARGS, str) == {"cmd": "cat 'a b.txt'"}
    assert json.dumps({"cmd": "cat 'a b.txt'"}) in codex_tools.read(ARGS, str)


def test_patches_add_files_and_replace_lines() -> None:
    assert codex_tools.write_patch(ARGS, str) == ("*** Begin Patch\n*** Add File: a b.txt\n+one\n+two\n*** End Patch")
    assert codex_tools.edit_patch(ARGS, str) == (
        "*** Begin Patch\n*** Update File: a b.txt\n@@\n-one\n-two\n+three\n*** End Patch"
    )
    for script, patch in ((codex_tools.write, codex_tools.write_patch), (codex_tools.edit, codex_tools.edit_patch)):
        assert f"tools.apply_patch({json.dumps(patch(ARGS, str))})" in script(ARGS, str)


@pytest.mark.parametrize(
    ("kind", "offered", "name"),
    [
        ("shell", ("exec",), "exec"),
        ("shell", ("exec_command", "apply_patch"), "exec_command"),
        ("read", ("exec",), "exec"),
        ("read", ("exec_command",), "exec_command"),
        ("write", ("exec",), "exec"),
        ("write", ("exec_command", "apply_patch"), "apply_patch"),
        ("edit", ("exec",), "exec"),
        ("edit", ("exec_command", "apply_patch"), "apply_patch"),
    ],
)
def test_each_kind_of_tool_is_found_in_both_dialects(kind: ToolKind, offered: tuple[str, ...], name: str) -> None:
    found = resolve(ToolCall(kind, ARGS), Conversation(prompts=("x",), tools=offered))
    assert found is not None
    assert found[0] == name
