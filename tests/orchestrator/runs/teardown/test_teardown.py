"""Ends that do not go smoothly: nothing lives on, the run finishes all the same, and what is left goes later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.runs import LimitsRequest
from orchestrator.errors import SandboxError
from orchestrator.events import Error
from orchestrator.runs.launch.launch import LAST_RESORT_SECONDS
from orchestrator.runs.storage.database import Database, to_json
from orchestrator.runs.storage.store import Store
from orchestrator.runs.teardown import teardown
from tests.orchestrator.runs.harness import USER, Service, World, answer, shape


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "INTERRUPT_SECONDS", 0.05)
    monkeypatch.setattr(teardown, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(teardown, "FIRST_PAUSE", 0.01)


async def cancelled(service: Service, run_id: str) -> None:
    await service.runs.cancel(run_id, user_id=USER)
    record = await service.finished(run_id)
    assert record.outcome == "cancelled", record.error


@pytest.mark.parametrize("how", ["refused", "no answer"])
async def test_signals_that_do_not_arrive_do_not_stop_the_ladder(world: World, how: str) -> None:
    if how == "refused":
        world.runtime.fail_signal = SandboxError("the OCI runtime hangs")
    else:
        world.runtime.hold_signal = asyncio.Event()
    async with world.service() as service:
        run = await service.submit()
        (await service.container()).say(session="s")
        await cancelled(service, run.run_id)
        assert world.runtime.removed == [run.run_id]


async def test_what_cannot_be_removed_does_not_keep_the_run_from_ending_and_goes_later(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        world.runtime.fail_remove = SandboxError("device or resource busy")
        await cancelled(service, run.run_id)
        assert container.state == "exited"
        assert world.runtime.containers
        assert (await service.events(run.run_id))[-1].kind == "error"
        assert await service.supervisor.leftovers() == [f"container of {run.run_id}"]
        world.runtime.fail_remove = None
        async with asyncio.timeout(10):
            while world.runtime.containers:  # noqa: ASYNC110 -- the fake gives no signal
                await asyncio.sleep(0.01)
        assert await service.supervisor.leftovers() == []


async def test_what_cannot_be_removed_does_not_keep_the_service_from_starting(world: World) -> None:
    async with world.service() as service:
        first = await service.submit()
        await service.container()
        world.runtime.fail_remove = SandboxError("device or resource busy")
        await cancelled(service, first.run_id)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        world.runtime.fail_remove = None
        answer(container)
        await service.finished(run.run_id)
        async with asyncio.timeout(10):
            while world.runtime.containers:  # noqa: ASYNC110 -- the fake gives no signal
                await asyncio.sleep(0.01)


async def test_a_stopping_service_kills_what_has_to_end_and_lets_go_of_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "INTERRUPT_SECONDS", 60.0)
    async with world.service() as service:
        doomed, other = await service.submit(), await service.submit()
        deaf, goes_on = await service.container(), await service.container()
        if deaf.spec.run_id != doomed.run_id:
            deaf, goes_on = goes_on, deaf
        deaf.ignores_int = True
        deaf.say(session="s")
        await service.until(doomed.run_id, "session_started")
        await service.runs.cancel(doomed.run_id, user_id=USER)
        async with asyncio.timeout(10):
            while not deaf.signals:  # noqa: ASYNC110 -- the fake gives no signal
                await asyncio.sleep(0)
    assert (deaf.signals, goes_on.signals) == (["INT", "KILL"], [])
    async with world.service() as service:
        assert (await service.finished(doomed.run_id)).outcome == "cancelled"
        answer(goes_on)
        assert (await service.finished(other.run_id)).outcome == "completed"


async def test_a_relay_that_hangs_does_not_keep_a_run_alive_that_was_taken_over(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        await service.container()
    world.relay.hold = asyncio.Event()
    async with world.service() as service:
        await cancelled(service, run.run_id)
        assert not world.runtime.containers
    assert world.relay.grants == {}


async def test_a_cancel_outlives_a_start_that_was_cut_short(world: World) -> None:
    """Killed between the wish and the end, while the container was being made: it does not start again."""
    world.runtime.hold_create = asyncio.Event()
    async with world.service() as service:
        run = await service.submit()
        await service.until(run.run_id, "status", phase="starting")
    await in_database(world, run.run_id, cancel_requested=1)
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert record.outcome == "cancelled"
        assert shape(await service.events(run.run_id))[-1] == "error"
    assert world.runtime.started.empty()


@pytest.mark.parametrize("started", [True, False])
async def test_the_reason_of_an_end_outlives_the_service(world: World, started: bool) -> None:
    """Killed between the SIGKILL for too much memory and the last event."""
    if not started:
        world.runtime.hold_create = asyncio.Event()
    async with world.service() as service:
        run = await service.submit()
        await service.until(run.run_id, "status", phase="starting")
        if started:
            container = await service.container()
            container.say(session="s")
            await service.until(run.run_id, "session_started")
    reason = Error(reason="memory_exceeded", message="Too much.", details={"limit_bytes": 1})
    await in_database(world, run.run_id, error=to_json(reason.data()))
    world.runtime.containers.clear()
    async with world.service() as service:
        record = await service.finished(run.run_id)
    assert record.error is not None
    assert (record.error["reason"], record.error["details"]["limit_bytes"]) == ("memory_exceeded", 1)
    assert world.runtime.started.empty()


async def test_a_limit_is_noted_before_the_end(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=100))
        container = await service.container()
        world.runtime.hold_signal = asyncio.Event()
        container.say(text="x" * 200)
        async with asyncio.timeout(10):
            while (await service.runs.get(run.run_id, user_id=USER)).error is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await service.runs.get(run.run_id, user_id=USER)).state != "finished"
        world.runtime.hold_signal.set()
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "output_exceeded"


async def test_the_container_has_a_deadline_of_its_own(world: World) -> None:
    """For the case that no service is there when the time is over."""
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(wall_clock_seconds=30))
        container = await service.container()
        assert 30 < container.spec.kill_after_seconds <= 30 + LAST_RESORT_SECONDS
        await cancelled(service, run.run_id)


async def test_a_cancel_is_not_lost_between_the_queue_and_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wish comes after the run was read and before it has a driver."""
    async with world.service() as service:
        supervisor = service.supervisor
        read = Store.run

        async def run_then_cancel(store: Store, run_id: str, **options: Any) -> object:
            found = await read(store, run_id, **options)
            if run_id in supervisor._queue.active and run_id not in supervisor._drivers:
                supervisor._cancelled.add(run_id)
            return found

        monkeypatch.setattr(Store, "run", run_then_cancel)
        run = await service.submit()
        record = await service.finished(run.run_id)
        assert record.outcome == "cancelled"
        assert world.runtime.created == []


async def in_database(world: World, run_id: str, **columns: object) -> None:
    database = Database(world.paths.database)
    await database.open()
    try:
        await Store(database).update_run(run_id, **columns)
    finally:
        await database.aclose()
