"""Who does something is reported to whoever writes the audit log: the token's own name, for whomever it acts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.orchestrator.api.harness import Api

FOR_ALICE = {"X-Podmentor-User": "alice"}
ACTIONS: list[tuple[str, str, str, Any]] = [
    ("cancel", "POST", "/v1/runs/run-1/cancel", None),
    ("apply", "POST", "/v1/subagents/sub-1/apply", {}),
    ("discard", "POST", "/v1/subagents/sub-1/discard", {}),
    ("rollback", "POST", "/v1/subagents/sub-1/rollback", {"run_id": "run-1"}),
    ("delete_subagent", "DELETE", "/v1/subagents/sub-1", None),
]


@pytest.mark.parametrize(("name", "method", "path", "body"), ACTIONS, ids=[action[0] for action in ACTIONS])
async def test_of_runs_and_changes(api: Api, name: str, method: str, path: str, body: Any) -> None:
    api.runs.add_run()
    answer = await api.call(method, path, who="svc", body=body, headers=FOR_ALICE)
    assert answer.status < 300, answer.body
    assert api.runs.actors == [(name, "service:svc")]


async def test_of_cleaning_up(api: Api) -> None:
    assert (await api.post("/v1/gc", {"dry_run": True}, who="root")).status == 200
    assert api.runs.actors == [("gc", "admin:root")]


async def test_of_accounts(api: Api) -> None:
    base = "/ui/plugins/external_agent/subscription/claude-code"
    await api.post(base + "/connect", who="svc", headers=FOR_ALICE)
    await api.call("DELETE", base, who="local")
    assert api.accounts.actors == [("connect", "service:svc"), ("disconnect", "admin:local")]
