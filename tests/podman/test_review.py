"""From a run to the repo, through the whole service: look, apply, drop, go back, make room."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.podman.live import LiveService

pytestmark = pytest.mark.podman


async def test_a_change_is_looked_at_and_applied(service: LiveService, repo: Path) -> None:
    first = await service.submit("scenario: edit", repo=str(repo))
    assert (await service.finished(first["run_id"]))["outcome"] == "completed"
    subagent = f"/v1/subagents/{first['subagent_id']}"
    assert (await service.call("GET", f"/v1/runs/{first['run_id']}/changes"))["changes"] == [
        {"path": "note.txt", "change": "changed"}
    ]
    planned = await service.call("POST", f"{subagent}/apply", json={"dry_run": True})
    assert [(one["path"], one["outcome"]) for one in planned["files"]] == [("note.txt", "applied")]
    assert not (repo / "note.txt").exists()
    branch = await service.call("POST", f"{subagent}/apply", json={"branch": "agent"})
    assert (branch["applied"], len(branch["commit"])) == (True, 40)
    assert not (repo / "note.txt").exists()
    assert (await service.call("POST", f"{subagent}/apply", json={}))["applied"] is True
    assert (repo / "note.txt").read_text()
    assert (await service.call("GET", f"{subagent}/changes"))["changes"] == []
    events = [json.loads(line)["event"] for line in (service.state / "audit.log").read_text().splitlines()]
    assert [event for event in events if event.startswith("changes.")] == ["changes.apply", "changes.applied"] * 2


async def test_a_change_is_dropped_had_back_and_in_the_way_of_making_room(service: LiveService, repo: Path) -> None:
    run = await service.submit("scenario: edit", repo=str(repo), workspace="copy")
    await service.finished(run["run_id"])
    subagent = f"/v1/subagents/{run['subagent_id']}"
    kept = await service.call("POST", "/v1/gc", json={"older_than_days": 0})
    assert [item["id"] for item in kept["kept"]] == [run["subagent_id"]]
    assert (await service.call("POST", f"{subagent}/discard", json={}))["discarded"] == ["note.txt"]
    assert (await service.call("GET", f"{subagent}/changes"))["changes"] == []
    await service.call("POST", f"{subagent}/rollback", json={"run_id": run["run_id"]})
    assert [c["path"] for c in (await service.call("GET", f"{subagent}/changes"))["changes"]] == ["note.txt"]
    again = await service.submit("scenario: shell", subagent_id=run["subagent_id"])
    assert (await service.finished(again["run_id"]))["outcome"] == "completed"
    of_run = (await service.call("GET", f"/v1/runs/{again['run_id']}/changes"))["changes"]
    assert of_run == [{"path": "out.txt", "change": "changed"}]
    await service.call("POST", f"{subagent}/discard", json={"paths": ["note.txt", "out.txt"]})
    gone = await service.call("POST", "/v1/gc", json={"older_than_days": 0})
    assert [(item["kind"], item["id"]) for item in gone["removed"]] == [("subagent", run["subagent_id"])]
    assert list((service.state / "subagents").iterdir()) == []
