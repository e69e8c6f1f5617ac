"""Conversations, the session map, and what an agent changed."""

from dataclasses import replace

import pytest

from orchestrator.contract.changes import ChangeSelection, CommitInfo, FileChange
from orchestrator.contract.runs import GcRequest
from tests.orchestrator.api.harness import Api


async def test_conversations_are_listed_and_shown(api: Api) -> None:
    api.runs.add_run()
    api.runs.add_run(subagent_id="sub-1")
    api.runs.add_run(user_id="bob")
    listed = (await api.get("/v1/subagents")).json["subagents"]
    assert [(item["subagent_id"], item["run_ids"]) for item in listed] == [("sub-1", ["run-1", "run-2"])]
    assert (await api.get("/v1/subagents/sub-1")).json == listed[0]
    assert len((await api.get("/v1/subagents", who="root")).json["subagents"]) == 2


async def test_a_conversation_gets_another_title(api: Api) -> None:
    api.runs.add_run()
    path = "/v1/subagents/sub-1"
    answer = await api.call("PATCH", path, body={"title": "Parser"})
    assert (answer.status, answer.json["title"]) == (200, "Parser")
    assert (await api.get(path)).json["title"] == "Parser"
    for wrong in ({}, {"title": ""}, {"title": "a\nb"}, {"title": "x" * 81}, {"title": "a", "repo": "b"}):
        assert (await api.call("PATCH", path, body=wrong)).status == 400
    assert (await api.call("PATCH", path, body={"title": "mine"}, who="bob")).status == 404
    assert (await api.get(path)).json["title"] == "Parser"


async def test_conversations_are_found_by_the_beginning_of_their_id(api: Api) -> None:
    for subagent_id in ("abc", "abd", "b_c", "bxc"):
        api.runs.add_run(subagent_id=subagent_id)
    api.runs.add_run(subagent_id="abe", user_id="bob")
    for prefix, found in (("ab", ["abc", "abd"]), ("b_", ["b_c"]), ("abd", ["abd"]), ("c", [])):
        listed = (await api.get(f"/v1/subagents?prefix={prefix}")).json["subagents"]
        assert [item["subagent_id"] for item in listed] == found


async def test_the_session_map_has_the_documented_shape(api: Api) -> None:
    """C10"""
    api.runs.add_run()
    api.runs.add_run()
    api.runs.add_run(user_id="bob")
    for name in ("sub-1", "sub-3"):
        api.runs.subagents[name] = replace(api.runs.subagents[name], backend_session_id=f"session of {name}")
    entry = {
        "backend": "claude-code",
        "backend_session_id": "session of sub-1",
        "created_at": "2026-01-02T03:04:05.678Z",
        "last_used_at": "2026-01-02T03:04:05.678Z",
    }
    assert (await api.get("/v1/session-map")).json == {"external_agent": {"session_map": {"sub-1": entry}}}


async def test_changes_and_patch(api: Api) -> None:
    api.runs.add_run()
    change = FileChange(path="a/\udcffb", change="modified", size=3, binary=False, insertions=1, deletions=2)
    api.runs.changes_of["sub-1"] = [change]
    api.runs.patch_of["sub-1"] = b"--- a/x\n+++ b/x\n\xff\n"
    view = {
        "path": "a/\udcffb",
        "change": "modified",
        "size": 3,
        "binary": False,
        "insertions": 1,
        "deletions": 2,
        "old_path": None,
        "old_size": None,
        "mode": None,
        "old_mode": None,
        "ignored": False,
    }
    assert (await api.get("/v1/subagents/sub-1/changes")).json == {"changes": [view], "ignored": []}
    api.runs.changes_of["sub-1"] = [replace(change, ignored=True)]
    listed = (await api.get("/v1/subagents/sub-1/changes")).json
    assert listed == {"changes": [], "ignored": [view | {"ignored": True}]}
    patch = await api.get("/v1/subagents/sub-1/changes.patch")
    assert patch.headers["Content-Type"] == "text/x-diff"
    assert patch.body == b"--- a/x\n+++ b/x\n\xff\n"


async def test_paths_choose_among_the_changes(api: Api) -> None:
    api.runs.add_run()
    await api.get('/v1/subagents/sub-1/changes?path=src&paths=["a","b/%5Cudcff"]')
    await api.get("/v1/subagents/sub-1/changes.patch?path=src&ignored=1")
    assert api.runs.selections == [
        ChangeSelection(paths=("a", "b/\udcff", "src")),
        ChangeSelection(paths=("src",), ignored=True),
    ]
    for bad in ("paths=src", "paths={}", "paths=[1]", 'paths=[""]', "path="):
        assert (await api.get(f"/v1/subagents/sub-1/changes?{bad}")).status == 400


async def test_the_agents_commits(api: Api) -> None:
    api.runs.add_run()
    assert (await api.get("/v1/subagents/sub-1/commits")).json == {"commits": []}
    assert (await api.get("/v1/subagents/sub-1/commits.bundle")).status == 404
    commit = CommitInfo(
        commit="1" * 40,
        parents=("2" * 40,),
        author="A <a@b>",
        authored_at="2026-01-02T03:04:05+00:00",
        subject="Fix",
        refs=("HEAD",),
    )
    api.runs.commits_of["sub-1"] = [commit]
    (view,) = (await api.get("/v1/subagents/sub-1/commits")).json["commits"]
    assert (view["subject"], view["parents"]) == ("Fix", ["2" * 40])
    assert (await api.get("/v1/subagents/sub-1/commits.bundle")).body == b"bundle"
    assert (await api.get("/v1/subagents/sub-1/commits.patch")).body == b"patches"


async def test_old_things_are_removed_for_admins_alone(api: Api) -> None:
    body = {"older_than_days": 1.5, "unapplied": True, "dry_run": True}
    answer = await api.post("/v1/gc", body, who="root")
    assert answer.json == {
        "removed": [{"kind": "subagent", "id": "sub-1", "bytes": 5, "reason": None}],
        "kept": [],
        "bytes": 5,
        "dry_run": True,
    }
    assert api.runs.gcs == [GcRequest(older_than_days=1.5, unapplied=True, dry_run=True)]
    assert (await api.post("/v1/gc", {})).status == 403
    assert (await api.post("/v1/gc", {"older_than_days": -1}, who="root")).status == 400


async def test_a_conversation_is_removed(api: Api) -> None:
    api.runs.add_run()
    api.runs.subagents["sub-1"] = replace(api.runs.subagents["sub-1"], busy=True)
    busy = await api.call("DELETE", "/v1/subagents/sub-1")
    assert (busy.status, busy.json["code"]) == (409, "conflict")
    api.runs.subagents["sub-1"] = replace(api.runs.subagents["sub-1"], busy=False)
    gone = await api.call("DELETE", "/v1/subagents/sub-1")
    assert (gone.status, gone.body) == (204, b"")
    assert (await api.call("DELETE", "/v1/subagents/sub-1")).status == 404
    assert (await api.get("/v1/runs/run-1")).status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "/changes"), ("GET", "/changes.patch"), ("GET", "/commits")],
)
async def test_the_conversations_of_others_do_not_exist(api: Api, method: str, path: str) -> None:
    api.runs.add_run(user_id="bob")
    foreign = await api.call(method, f"/v1/subagents/sub-1{path}")
    missing = await api.call(method, f"/v1/subagents/sub-9{path}")
    strange = await api.call(method, f"/v1/subagents/%2e%2e{path}")
    assert foreign.status == missing.status == strange.status == 404
    assert foreign.json["detail"] == missing.json["detail"]
    assert "sub-1" in api.runs.subagents


async def test_nobody_continues_the_conversation_of_another(api: Api) -> None:
    api.runs.add_run(user_id="bob")
    body = {"backend": "claude-code", "query": "x", "subagent_id": "sub-1"}
    assert (await api.post("/v1/runs", body)).status == 404
    reported = await api.post("/v1/tools/claude_code", {"query": "x", "subagent_id": "sub-1"})
    unknown = await api.post("/v1/tools/claude_code", {"query": "x", "subagent_id": "sub-9"})
    assert reported.json["is_error"] is True
    assert reported.json == unknown.json
    assert api.runs.requests == []
