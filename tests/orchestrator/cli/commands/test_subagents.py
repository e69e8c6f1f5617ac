import json
from typing import Any

import pytest

from tests.fakes.api_server import TS, FakeApi, ThreadedApi
from tests.orchestrator.cli.conftest import Invoke


def subagent(name: str, **more: Any) -> dict[str, Any]:
    return {
        "subagent_id": name,
        "user_id": "local",
        "backend": "claude-code",
        "backend_session_id": "sess-1",
        "title": f"Look at {name}",
        "repo": "/src/x",
        "workspace": "overlay",
        "created_at": TS,
        "last_used_at": TS,
        "run_ids": ["run_1", "run_2"],
        "busy": False,
        **more,
    }


@pytest.fixture(autouse=True)
def some(api: FakeApi) -> None:
    api.subagents = [subagent("sub_a1"), subagent("sub_b2", busy=True, last_used_at="2026-06-01T10:00:00Z")]


def test_list_newest_first(invoke: Invoke, served: ThreadedApi) -> None:
    lines = invoke("subagents", "list").output.splitlines()
    assert [line.rpartition("/src/x ")[2].strip() for line in lines[1:]] == ["Look at sub_b2", "Look at sub_a1"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["sub_b2", "claude-code", "busy"],
        ["sub_a1", "claude-code", "idle"],
    ]
    assert len(json.loads(invoke("subagents", "list", "--json").output)["subagents"]) == 2


def test_show(invoke: Invoke, served: ThreadedApi) -> None:
    found = invoke("subagents", "show", "sub_a")
    assert "sess-1" in found.output
    assert "  run_2\n" in found.output
    assert json.loads(invoke("subagents", "show", "sub_a", "--json").output)["subagent_id"] == "sub_a1"
    assert invoke("subagents", "show", "sub_").exit_code == 2
    assert invoke("subagents", "show", "nope").exit_code == 5


def test_delete_asks_first(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("subagents", "delete", "sub_a", stdin="n\n").exit_code == 1
    assert api.deleted == []
    assert invoke("subagents", "delete", "sub_a", "--yes").output == "deleted sub_a1\n"
    assert invoke("subagents", "delete", "sub_b", stdin="y\n").exit_code == 0
    assert api.deleted == ["sub_a1", "sub_b2"]
