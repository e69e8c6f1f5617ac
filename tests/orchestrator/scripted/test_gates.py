import asyncio

from orchestrator.scripted.gates import Gate


async def test_a_gate_is_closed_until_it_is_released() -> None:
    gate = Gate()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    await gate.release(None)
    await waiter
    await gate.wait()  # open for all to come


async def test_so_many_pass_as_are_let_through() -> None:
    gate = Gate()
    waiters = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await gate.reached()
    await gate.release(2)
    done, pending = await asyncio.wait(waiters, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        done, pending = await asyncio.wait(waiters, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    await gate.reached()
    assert len(pending) == 1
    await gate.release(1)
    await asyncio.wait_for(asyncio.gather(*waiters), 5)


async def test_a_pass_given_beforehand_is_used_once() -> None:
    gate = Gate()
    await gate.release(1)
    await gate.wait()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    waiter.cancel()
    await asyncio.wait([waiter])


async def test_a_gate_can_be_closed_again() -> None:
    gate = Gate()
    await gate.release(None)
    await gate.hold()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    waiter.cancel()
    await asyncio.wait([waiter])


async def test_a_stream_that_went_away_waits_no_more() -> None:
    gate = Gate()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    waiter.cancel()
    await asyncio.wait([waiter])
    reached = asyncio.create_task(gate.reached())
    second = asyncio.create_task(gate.wait())
    await asyncio.wait_for(reached, 5)
    second.cancel()
    await asyncio.wait([second])
