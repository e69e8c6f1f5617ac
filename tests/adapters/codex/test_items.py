from typing import Any

import pytest

from adapters.codex.items import TOOLS, Call, Outcome, todo_text

IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def both(kind: str, **members: Any) -> tuple[Call, Outcome]:
    call, outcome = TOOLS[kind]
    return call(members), outcome(members)


@pytest.mark.parametrize(
    ("exit_code", "status", "is_error"),
    [
        (0, "completed", False),
        (3, "failed", True),
        (3, None, True),
        (None, "completed", False),
        (None, "declined", True),
    ],
)
def test_c7_a_command_fails_by_its_exit_code(exit_code: int | None, status: str | None, is_error: bool) -> None:
    found = both("command_execution", command="ls", aggregated_output="o", exit_code=exit_code, status=status)
    assert found == (Call("Bash", {"command": "ls"}), Outcome("o", is_error))


def test_c7_the_older_output_is_read_too() -> None:
    assert both("command_execution", command="ls", output="o", exit_code=0)[1] == Outcome("o", is_error=False)


@pytest.mark.parametrize(("status", "is_error"), [("completed", False), ("failed", True)])
def test_a_change_of_files_is_an_edit(status: str, is_error: bool) -> None:
    changes = [{"path": "/w/a", "kind": "add"}, {"path": "/w/b", "kind": "update"}]
    call, outcome = both("file_change", changes=changes, status=status)
    assert call == Call("Edit", {"changes": changes})
    assert outcome == Outcome("add /w/a\nupdate /w/b", is_error)


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        (
            {"result": {"content": [{"type": "text", "text": "a"}, IMAGE]}},
            Outcome("a\n[image image/png, 3 bytes]", False),
        ),
        ({"result": {"content": [{"odd": 1}]}}, Outcome('{"odd": 1}', False)),
        ({"result": None, "error": {"message": "no"}}, Outcome("no", True)),
        ({"result": None, "error": "no"}, Outcome("no", True)),
        ({"result": None, "status": "failed"}, Outcome("", True)),
        ({"result": "text"}, Outcome("text", False)),
    ],
)
def test_an_mcp_tool_is_named_with_its_server(members: dict[str, Any], outcome: Outcome) -> None:
    found = both("mcp_tool_call", server="wire", tool="echo", arguments={"x": 1}, **members)
    assert found == (Call("mcp__wire__echo", {"x": 1}), outcome)


@pytest.mark.parametrize(("arguments", "given"), [(None, {}), ([1], {"arguments": [1]}), ({"a": 1}, {"a": 1})])
def test_the_arguments_of_an_mcp_tool_need_not_be_an_object(arguments: Any, given: dict[str, Any]) -> None:
    assert both("mcp_tool_call", server="s", tool="t", arguments=arguments)[0].input == given


def test_a_search_and_a_helper_are_calls_as_well() -> None:
    assert both("web_search", query="q", action={"type": "search"}) == (
        Call("WebSearch", {"query": "q"}),
        Outcome('{"type": "search"}', is_error=False),
    )
    call, outcome = both("collab_tool_call", tool="spawn_agent", prompt="p", status="failed", agents_states={})
    assert (call, outcome.is_error) == (Call("spawn_agent", {"prompt": "p"}), True)


def test_a_plan_has_boxes() -> None:
    assert todo_text({"items": [{"text": "a", "completed": True}, {"text": "b"}]}) == "[x] a\n[ ] b"
