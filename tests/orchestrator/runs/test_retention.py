"""Making room: the old goes, what is in use or not taken yet stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.contract.changes import FileChange
from orchestrator.contract.runs import GcRequest, SubagentRecord
from orchestrator.errors import ForbiddenError, NotFoundError
from tests.fakes.workspaces import FakeWorkspaces
from tests.orchestrator.runs.harness import USER, Service, World, answer
from tests.orchestrator.runs.test_changes import Paused, audit, ended

NOW = GcRequest(older_than_days=0)
CHANGE = FileChange(path="a", change="added", size=1, binary=False, insertions=1, deletions=0)


def workspaces(service: Service) -> FakeWorkspaces:
    return service.workspaces


async def test_an_old_conversation_goes_with_its_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        subagent = await ended(service)
        assert (await service.runs.gc(GcRequest(), user_id=None)).removed == ()
        dry = await service.runs.gc(GcRequest(older_than_days=0, dry_run=True), user_id=None)
        assert [(item.kind, item.id) for item in dry.removed] == [("subagent", subagent)]
        assert dry.bytes > 0
        await service.runs.get_subagent(subagent, user_id=USER)
        done = await service.runs.gc(NOW, user_id=None)
        assert (done.removed, done.bytes) == (dry.removed, dry.bytes)
        with pytest.raises(NotFoundError):
            await service.runs.get_subagent(subagent, user_id=USER)
        assert workspaces(service).discarded == [subagent]
        assert [entry["event"] for entry in audit(world)] == ["gc", "gc"]  # not the dry one


async def test_changes_that_nobody_took_stay_unless_told_and_the_log_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        subagent = await ended(service)
        (run,) = (await service.runs.get_subagent(subagent, user_id=USER)).run_ids
        workspaces(service).changes = [CHANGE]
        done = await service.runs.gc(NOW, user_id=None)
        assert [(item.kind, item.id) for item in done.removed] == [("log", run)]
        (kept,) = done.kept
        assert (kept.id, kept.reason) == (subagent, "it has 1 changed files and 0 commits that nobody took or dropped")
        assert not world.paths.run_dir(run).exists()
        assert (await service.runs.get(run, user_id=USER)).final_text == "hi"
        done = await service.runs.gc(GcRequest(older_than_days=0, unapplied=True), user_id=None)
        assert [item.id for item in done.removed] == [subagent]


async def test_what_is_looked_at_cannot_be_used_before_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the changes of a run that comes in between would go too, and nobody would have looked at them."""
    async with World(tmp_path).service() as service:
        subagent = await ended(service)
        paused = Paused(service, "list_changes", monkeypatch)
        collecting = asyncio.create_task(service.runs.gc(NOW, user_id=None))
        await paused.begun.wait()
        submitting = asyncio.create_task(service.submit(subagent_id=subagent))
        assert await paused.kept_waiting(submitting)
        paused.go_on.set()
        assert [item.id for item in (await collecting).removed] == [subagent]
        with pytest.raises(NotFoundError):
            await submitting


async def test_what_was_used_since_the_list_was_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(tmp_path).service() as service:
        subagent = await ended(service)
        real = service.store.subagents

        async def outdated(*, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
            found = await real(user_id=user_id, prefix=prefix)
            monkeypatch.undo()
            run = await service.submit(subagent_id=subagent)
            answer(await service.container())
            await service.finished(run.run_id)
            return [replace(one, last_used_at="2020-01-01T00:00:00.000000Z") for one in found]

        monkeypatch.setattr(service.store, "subagents", outdated)
        done = await service.runs.gc(GcRequest(older_than_days=1), user_id=None)
        assert (done.removed, done.kept) == ((), ())
        await service.runs.get_subagent(subagent, user_id=USER)


async def test_what_is_in_use_stays(tmp_path: Path) -> None:
    async with World(tmp_path).service() as service:
        run = await service.submit()
        container = await service.container()
        done = await service.runs.gc(GcRequest(older_than_days=0, unapplied=True), user_id=None)
        assert (done.removed, [item.reason for item in done.kept]) == ((), ["one of its runs is not finished"])
        answer(container)
        await service.finished(run.run_id)


async def test_directories_that_belong_to_nothing_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        for name in ("subagents", "runs"):
            (world.paths.state_dir / name / ("0" * 32)).mkdir(parents=True)
            (world.paths.state_dir / name / "mine").mkdir()
        done = await service.runs.gc(GcRequest(), user_id=None)
        assert [(item.kind, item.id) for item in done.removed] == [("leftover", "0" * 32)] * 2
        for name in ("subagents", "runs"):
            assert (world.paths.state_dir / name / "mine").exists()


async def test_users_may_not(tmp_path: Path) -> None:
    async with World(tmp_path).service() as service:
        with pytest.raises(ForbiddenError):
            await service.runs.gc(NOW, user_id=USER)
