"""Tasks have an owner, and a crash is reported once."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.system.tasks import TaskOwner


async def crash() -> None:
    raise ZeroDivisionError("boom")


async def test_a_crash_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    owner = TaskOwner("t")
    waits = owner.spawn(asyncio.Event().wait(), name="waits")
    crashed = owner.spawn(crash(), name="crashes")
    await asyncio.wait({crashed})
    assert "t:crashes crashed" in caplog.text
    assert not waits.done()
    await owner.aclose()
    assert waits.cancelled()
    assert len(owner) == 0


async def test_an_awaited_task_leaves_its_error_to_who_awaits_it(caplog: pytest.LogCaptureFixture) -> None:
    owner = TaskOwner("t")
    with pytest.raises(ZeroDivisionError):
        await owner.spawn(crash(), name="crashes", awaited=True)
    assert caplog.text == ""
    await owner.aclose()


async def test_join_tells_whether_all_have_ended() -> None:
    owner = TaskOwner("t")
    gate = asyncio.Event()
    assert await owner.join(timeout=1)
    owner.spawn(gate.wait(), name="waits")
    assert not await owner.join(timeout=0.01)
    gate.set()
    assert await owner.join(timeout=10)


async def test_closing_twice_and_a_task_that_refuses_to_end(caplog: pytest.LogCaptureFixture) -> None:
    owner = TaskOwner("t")
    begun = asyncio.Event()
    gate = asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    task = owner.spawn(stubborn(), name="stubborn")
    await begun.wait()
    await owner.aclose(grace=0.01)
    assert "did not end" in caplog.text
    gate.set()
    await asyncio.wait({task})
    await owner.aclose()
