"""Bringing changes into the repo, over HTTP."""

from dataclasses import replace

import pytest

from orchestrator.contract.changes import ApplyRequest, ChangeSelection, FileOutcome
from tests.orchestrator.api.harness import Api

DONE = FileOutcome(path="a", change="modified", outcome="applied")
URL = "/v1/subagents/sub-1/apply"


async def test_an_apply_says_what_became_of_each_path(api: Api) -> None:
    api.runs.add_run()
    api.runs.outcomes = (DONE,)
    answer = await api.post(URL, {})
    assert (answer.status, answer.json["applied"], answer.json["branch"]) == (200, True, None)
    assert answer.json["files"] == [{"path": "a", "change": "modified", "outcome": "applied", "reason": None}]
    assert api.runs.applies == [ApplyRequest()]


async def test_all_its_members_arrive(api: Api) -> None:
    api.runs.add_run()
    body = {
        "paths": ["src", "\udcff"],
        "ignored": True,
        "on_conflict": "merge",
        "dry_run": True,
        "branch": "b",
        "message": "m",
    }
    assert (await api.post(URL, body)).json["applied"] is False
    assert api.runs.applies == [
        ApplyRequest(
            selection=ChangeSelection(paths=("src", "\udcff"), ignored=True),
            on_conflict="merge",
            dry_run=True,
            branch="b",
            message="m",
        )
    ]


async def test_conflicts_are_an_error_with_the_files(api: Api) -> None:
    api.runs.add_run()
    api.runs.outcomes = (DONE, replace(DONE, path="b", outcome="conflict", reason="changed"))
    refused = await api.post(URL, {})
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert refused.json["files"] == [{"path": "b", "change": "modified", "outcome": "conflict", "reason": "changed"}]


@pytest.mark.parametrize(
    "body",
    [
        {"on_conflict": "maybe"},
        {"paths": "a"},
        {"paths": [""]},
        {"paths": [1]},
        {"dry_run": 1},
        {"branch": ""},
        {"x": 1},
        {"message": "\ud800", "paths": ["a"]},
        {"branch": "\ud800"},
    ],
)
async def test_wrong_bodies_are_refused(api: Api, body: dict[str, object]) -> None:
    api.runs.add_run()
    assert (await api.post(URL, body)).status == 400
    assert api.runs.applies == []


async def test_discard(api: Api) -> None:
    api.runs.add_run()
    url = "/v1/subagents/sub-1/discard"
    assert (await api.post(url, {"paths": ["a", "\udcff"]})).json == {"discarded": ["a", "\udcff"]}
    assert (await api.post(url, {})).json == {"discarded": ["everything"]}
    assert (await api.post(url, {"path": "a"})).status == 400
    api.runs.subagents["sub-1"] = replace(api.runs.subagents["sub-1"], busy=True)
    assert (await api.post(url, {})).status == 409


async def test_the_changes_of_a_run_and_the_way_back(api: Api) -> None:
    api.runs.add_run()
    found = (await api.get("/v1/runs/run-1/changes")).json["changes"]
    assert found[1] == {"path": "b", "change": "deleted"}
    url = "/v1/subagents/sub-1/rollback"
    assert (await api.post(url, {"run_id": "run-1"})).status == 204
    assert api.runs.rollbacks == [("sub-1", "run-1")]
    assert (await api.post(url, {"run_id": "run-9"})).status == 404
    assert (await api.post(url, {})).status == 400
    assert (await api.get("/v1/runs/run-9/changes")).status == 404


async def test_not_while_a_run_is_under_way_and_not_anothers(api: Api) -> None:
    api.runs.add_run()
    api.runs.add_run(user_id="bob")
    api.runs.subagents["sub-1"] = replace(api.runs.subagents["sub-1"], busy=True)
    assert (await api.post(URL, {})).status == 409
    assert (await api.post("/v1/subagents/sub-2/apply", {})).status == 404
