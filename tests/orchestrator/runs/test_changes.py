"""The service's side of applying: only between runs, and on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.changes import ApplyRequest, FileOutcome
from orchestrator.errors import ConflictError, NotFoundError, StorageError
from tests.fakes.workspaces import FakeWorkspaces
from tests.orchestrator.runs.harness import USER, Service, World, answer


def workspaces(service: Service) -> FakeWorkspaces:
    return service.workspaces


async def ended(service: Service) -> str:
    run = await service.submit()
    answer(await service.container())
    await service.finished(run.run_id)
    return run.subagent_id


def audit(world: World) -> list[dict[str, Any]]:
    return [event for event in world.audit.events if event["event"].startswith(("changes.", "gc"))]


async def test_an_apply_is_on_record_with_who_and_what(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        subagent = await ended(service)
        workspaces(service).outcomes = (
            FileOutcome(path="a", change="added", outcome="applied"),
            FileOutcome(path="b", change="added", outcome="kept"),
        )
        await service.changes.apply(subagent, ApplyRequest(dry_run=True), user_id=USER)
        assert audit(world) == []
        await service.changes.apply(subagent, ApplyRequest(), user_id=USER)
        before, after = audit(world)
        assert (before["event"], before["user_id"], before["paths"]) == ("changes.apply", USER, "[]")
        assert (after["event"], after["subagent_id"], after["paths"]) == ("changes.applied", subagent, '["a"]')


async def test_what_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        subagent = await ended(service)
        world.audit.failure = StorageError("full")
        with pytest.raises(StorageError):
            await service.changes.apply(subagent, ApplyRequest(), user_id=USER)
        with pytest.raises(StorageError):
            await service.changes.discard(subagent, (), user_id=USER)
        assert (workspaces(service).applied, workspaces(service).dropped) == ([], [])


async def test_nothing_is_applied_while_a_run_is_under_way(tmp_path: Path) -> None:
    async with World(tmp_path).service() as service:
        run = await service.submit()
        container = await service.container()
        with pytest.raises(ConflictError, match="not finished"):
            await service.changes.apply(run.subagent_id, ApplyRequest(), user_id=USER)
        with pytest.raises(NotFoundError):
            await service.changes.apply(run.subagent_id, ApplyRequest(), user_id="bob")
        answer(container)
        await service.finished(run.run_id)
        assert workspaces(service).applied == []


async def test_a_discard_is_on_record_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        subagent = await ended(service)
        assert await service.changes.discard(subagent, ("a",), user_id=None) == ["a"]
        (entry,) = audit(world)
        assert (entry["event"], entry["user_id"], entry["paths"]) == ("changes.discard", USER, '["a"]')


async def test_the_way_back_leads_to_own_runs_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.service() as service:
        first, second = await ended(service), await ended(service)
        (run,) = (await service.runs.get_subagent(first, user_id=USER)).run_ids
        assert await service.changes.changes_of_run(run, user_id=USER) == {"a": "changed"}
        with pytest.raises(NotFoundError):
            await service.changes.rollback(second, run, user_id=USER)
        await service.changes.rollback(first, run, user_id=USER)
        assert workspaces(service).rolled_back == [run]
        assert [entry["event"] for entry in audit(world)] == ["changes.rollback"]


async def test_an_apply_waits_for_whoever_has_the_workspace(tmp_path: Path) -> None:
    async with World(tmp_path).service() as service:
        subagent = await ended(service)
        async with workspaces(service).exclusive(subagent):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(service.changes.apply(subagent, ApplyRequest(), user_id=USER), 0.05)
        await service.changes.apply(subagent, ApplyRequest(), user_id=USER)
        assert len(workspaces(service).applied) == 1


class Paused:
    """A method of the workspaces that has begun and goes on when ``go_on`` is set."""

    def __init__(self, service: Service, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        real, exclusive = getattr(service.workspaces, method), service.workspaces.exclusive

        async def paused(*args: Any, **options: Any) -> Any:
            self.begun.set()
            await self.go_on.wait()
            return await real(*args, **options)

        @asynccontextmanager
        async def watched(subagent_id: str) -> AsyncIterator[None]:
            if self.begun.is_set():
                self.asked.set()
            async with exclusive(subagent_id):
                yield

        monkeypatch.setattr(service.workspaces, method, paused)
        monkeypatch.setattr(service.workspaces, "exclusive", watched)

    async def kept_waiting(self, task: asyncio.Task[Any]) -> bool:
        """Whether ``task`` has come to wait for the workspace; False: it is done without that."""
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        return not task.done()


async def test_a_run_that_comes_during_an_apply_is_accepted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path).service() as service:
        subagent = await ended(service)
        paused = Paused(service, "apply", monkeypatch)
        applying = asyncio.create_task(service.changes.apply(subagent, ApplyRequest(), user_id=USER))
        await paused.begun.wait()
        submitting = asyncio.create_task(service.submit(subagent_id=subagent))
        assert await paused.kept_waiting(submitting)
        assert not (await service.runs.get_subagent(subagent, user_id=USER)).busy
        paused.go_on.set()
        await applying
        run = await submitting
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"


async def test_a_run_that_comes_while_its_subagent_is_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be accepted and then vanish with the rest."""
    async with World(tmp_path).service() as service:
        subagent = await ended(service)
        paused = Paused(service, "discard", monkeypatch)
        deleting = asyncio.create_task(service.runs.delete_subagent(subagent, user_id=USER))
        await paused.begun.wait()
        submitting = asyncio.create_task(service.submit(subagent_id=subagent))
        assert await paused.kept_waiting(submitting)
        paused.go_on.set()
        await deleting
        with pytest.raises(NotFoundError):
            await submitting


async def test_the_repos_state_is_recorded_at_the_end_of_each_run(tmp_path: Path) -> None:
    async with World(tmp_path).service() as service:
        run = await service.submit()
        container = await service.container()
        assert workspaces(service).ended == []
        answer(container)
        await service.finished(run.run_id)
        assert [mount.mode for mount in workspaces(service).ended] == ["overlay"]
