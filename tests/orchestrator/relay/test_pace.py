import asyncio
from typing import cast

import pytest

from orchestrator.relay.pace import FREE_SECONDS, PAUSE, PIECE, Pace, Paced
from tests.orchestrator.relay.proxied import eventually


class Transport(asyncio.Transport):
    """Notes whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Inner(asyncio.Protocol):
    """Keeps what it gets; each piece takes it ``cost`` seconds of the clock."""

    def __init__(self, clock: list[float], cost: float) -> None:
        self.clock, self.cost = clock, cost
        self.pieces: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.clock[0] += self.cost
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.ended.set()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


def paced(cost: float, clock: list[float] | None = None, pace: Pace | None = None) -> tuple[Paced, Inner, Transport]:
    clock = clock if clock is not None else [0.0]
    found = clock
    inner, transport = Inner(clock, cost), Transport()
    one = Paced(inner, pace or Pace(lambda: found[0]))
    one.connection_made(transport)
    return one, inner, transport


async def test_what_is_cheap_goes_on_at_once_and_in_pieces() -> None:
    one, inner, transport = paced(FREE_SECONDS / 2)
    data = bytes(range(256)) * 1024
    one.data_received(data)
    assert b"".join(inner.pieces) == data
    assert max(map(len, inner.pieces)) <= PIECE
    assert transport.is_reading()


async def test_behind_a_dear_piece_there_is_a_rest_for_all_connections_of_the_run() -> None:
    clock = [100.0]
    pace = Pace(lambda: clock[0])
    one, first, transport = paced(0.01, clock, pace)
    two, second, _ = paced(0.01, clock, pace)
    one.data_received(b"a" * 3 * PIECE)
    two.data_received(b"b" * PIECE)
    assert (len(first.pieces), len(second.pieces)) == (1, 0)
    assert not transport.is_reading(), "nothing more is taken from the client meanwhile"
    assert pace.wait() == pytest.approx(PAUSE * 0.01)
    clock[0] += PAUSE * 0.01
    async with asyncio.timeout(20):
        while len(first.pieces) + len(second.pieces) < 4:
            await asyncio.sleep(0.001)
            clock[0] += 0.01
    assert b"".join(first.pieces) == b"a" * 3 * PIECE
    assert b"".join(second.pieces) == b"b" * PIECE
    assert transport.is_reading()


async def test_the_end_is_passed_on_behind_everything_else_and_once() -> None:
    clock = [0.0]
    one, inner, transport = paced(0.01, clock)
    one.data_received(b"a" * 2 * PIECE)
    assert one.eof_received() is True
    assert not inner.ended.is_set()
    clock[0] += 1
    await asyncio.wait_for(inner.ended.wait(), 20)
    assert len(inner.pieces) == 2
    assert transport.closed, "the protocol does not want to go on"
    assert not transport.is_reading(), "reading on would tell the end again"
    other, quiet, _ = paced(0.01)
    assert other.eof_received() is False
    assert quiet.ended.is_set()


async def test_a_protocol_that_takes_nothing_is_not_read_for() -> None:
    clock = [0.0]
    one, inner, transport = paced(0.01, clock)
    assert inner.transport is not None
    inner.transport.pause_reading()
    assert not transport.is_reading()
    one.data_received(b"a" * 2 * PIECE)
    clock[0] += 1
    await eventually(lambda: len(inner.pieces) == 2)
    assert not transport.is_reading(), "a rest that is over does not mean that it wants more"
    inner.transport.resume_reading()
    assert transport.is_reading()
    assert inner.transport.is_reading()


async def test_a_connection_that_is_lost_or_closing_gets_nothing_more() -> None:
    clock = [0.0]
    one, inner, transport = paced(0.01, clock)
    one.data_received(b"a" * 2 * PIECE)
    one.connection_lost(None)
    clock[0] += 1
    await asyncio.sleep(0.1)
    assert (len(inner.pieces), inner.lost) == (1, [None])
    two, other, transport = paced(0.0)
    transport.closed = True
    two.data_received(b"a" * PIECE)
    assert other.pieces == []
