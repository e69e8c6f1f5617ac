"""Restarts: what an earlier service left is taken over, and the journal is what it would have been anyway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import EventRecord
from tests.orchestrator.runs.harness import USER, World, answer, shape
from tests.orchestrator.runs.test_supervisor import WHOLE, assert_nothing_left


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def contents(events: list[EventRecord]) -> list[tuple[int, str, Any]]:
    return [(event.seq, event.kind, dict(event.data)) for event in events]


async def test_a_run_goes_on_over_restarts_as_if_nothing_had_happened(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        container.say(text="one ")
        await service.until(run.run_id, "message_delta")
    assert container.state == "running"
    container.say(text="two ")
    async with world.service() as service:
        await service.until(run.run_id, "message_delta", text="two ")
    container.write(b'{"text":"thr', mark="P")
    async with world.service() as service:
        container.write(b'ee"}')
        container.say(done="one two three")
        container.exit(0)
        record = await service.finished(run.run_id)
        assert record.outcome == "completed"
        events = await service.events(run.run_id)
        assert shape(events) == [*WHOLE[:4], "message_delta", "message_delta", "message_delta", "completed"]
        assert [event.data["text"] for event in events if event.kind == "message_delta"] == ["one ", "two ", "three"]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert_nothing_left(world)


async def test_a_run_that_ended_while_nobody_looked(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
    container.say(text="hi")
    container.say(done="hi")
    container.exit(0)
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert (record.outcome, record.exit_code) == ("completed", 0)
        assert shape(await service.events(run.run_id)) == WHOLE
    assert_nothing_left(world)


async def test_a_run_whose_container_vanished_keeps_its_events_and_is_lost(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
    container.say(text="said before the end")
    world.runtime.containers.clear()
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "lost"
        assert shape(await service.events(run.run_id)) == [*WHOLE[:-1], "error"]
    assert_nothing_left(world)


async def test_waiting_runs_keep_their_order(tmp_path: Path) -> None:
    world = World(tmp_path, runs={"max_concurrent": 1})
    async with world.service() as service:
        runs = [await service.submit(f"task {i}") for i in range(4)]
        first = await service.container()
    async with world.service() as service:
        answer(first)
        for run in runs[1:]:
            container = await service.container()
            assert container.spec.run_id == run.run_id
            answer(container)
        for run in runs:
            assert (await service.finished(run.run_id)).outcome == "completed"
            phases = shape(await service.events(run.run_id))
            assert phases.count("status:starting") == 1
    assert_nothing_left(world)


async def test_a_run_that_was_being_started_is_started_again(world: World) -> None:
    world.runtime.hold_create = asyncio.Event()
    async with world.service() as service:
        run = await service.submit()
        await service.until(run.run_id, "status", phase="starting")
        async with asyncio.timeout(10):
            while (made := (await service.runs.get(run.run_id, user_id=USER)).sandbox_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    world.runtime.hold_create = None
    async with world.service() as service:
        assert made in world.runtime.asked_for, "Podman may have been killed while it made it"
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"
        assert shape(await service.events(run.run_id)) == WHOLE
    assert_nothing_left(world)


async def test_a_container_created_but_not_started_is_replaced(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
    container.state = "created"
    async with world.service() as service:
        again = await service.container()
        assert again is not container
        answer(again)
        assert (await service.finished(run.run_id)).outcome == "completed"
    assert_nothing_left(world)


async def test_a_wish_to_cancel_outlives_the_service(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        await service.until(run.run_id, "session_started")
        await service.store.update_run(run.run_id, cancel_requested=1)
    async with world.service() as service:
        assert (await service.finished(run.run_id)).outcome == "cancelled"
    assert_nothing_left(world)


async def test_the_sweep_removes_what_belongs_to_no_run(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        answer(container)
        await service.finished(run.run_id)
    world.runtime.containers[container.container_id] = container
    stale = world.paths.control_dir("f" * 32)
    stale.mkdir()
    async with world.service():
        assert_nothing_left(world)


async def test_the_gateway_is_opened_again_for_a_run_taken_over(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        before = world.relay.grants[run.run_id]
    world.relay.grants.clear()
    async with world.service() as service:
        await service.until(run.run_id, "status", phase="starting")
        container.say(session="s")
        await service.until(run.run_id, "session_started")
        after = world.relay.grants[run.run_id]
        assert after.token_sha256 == before.token_sha256
        answer(container)
        await service.finished(run.run_id)


async def test_drain_waits_for_what_runs(world: World) -> None:
    async with world.service(drain=True) as service:
        run = await service.submit()
        container = await service.container()
        asyncio.get_running_loop().call_later(0.05, answer, container)
    async with world.service() as service:
        record = await service.runs.get(run.run_id, user_id=USER)
        assert record.outcome == "completed"


async def test_what_is_let_go_of_still_needs_the_relay(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        await service.until(run.run_id, "session_started")
        await service.supervisor.stop(drain=False)
        assert service.supervisor.left_running == {run.run_id}
    async with world.service(drain=True) as service:
        answer(container)
        await service.finished(run.run_id)
        await service.supervisor.stop(drain=True)
        assert service.supervisor.left_running == frozenset()


async def test_a_journal_that_has_more_than_the_log_still_gets_its_end(world: World) -> None:
    """The machine went down: SQLite had synced, the log had not been written back."""
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        container.say(text="one ")
        container.say(text="two ")
        await service.until(run.run_id, "message_delta", text="two ")
    data = container.spec.log_path.read_bytes()
    container.spec.log_path.write_bytes(data[: data.index(b"\n") + 1] + b"\0" * 100)
    world.runtime.containers.clear()
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "lost"
        assert shape(await service.events(run.run_id)) == [*WHOLE[:4], "message_delta", "message_delta", "error"]


async def test_a_run_that_had_printed_something_is_not_done_again(world: World) -> None:
    """The service died before it saw the first output, and the machine has ended the container."""
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
    container.say(session="s1")
    container.say(text="edited your files ")
    world.runtime.containers.clear()
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "lost"
        assert len(world.runtime.created) == 1
        texts = [event.data["text"] for event in await service.events(run.run_id) if event.kind == "message_delta"]
        assert texts == ["edited your files "]


@pytest.mark.parametrize("how", ["removed", "cut"])
async def test_a_log_that_somebody_spoils_ends_the_run_and_says_so(world: World, how: str) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
        if how == "cut":
            container.spec.log_path.write_bytes(b"")
            await service.finished(run.run_id)
    if how == "removed":
        container.spec.log_path.unlink()
    async with world.service() as service:
        record = await service.finished(run.run_id)
    assert record.error is not None
    assert record.error["reason"] == "sandbox_failed"
    assert {"cut": "made shorter", "removed": "cannot be read"}[how] in record.error["message"]
    assert_nothing_left(world)
