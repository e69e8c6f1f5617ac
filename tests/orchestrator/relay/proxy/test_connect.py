import asyncio
import ipaddress
import socket

import pytest

from orchestrator.config.hosts import Address
from orchestrator.relay.proxy import connect as module
from orchestrator.relay.proxy.connect import connect, is_own
from tests.orchestrator.relay.proxied import eventually, target


def addresses(*texts: str) -> list[Address]:
    return [ipaddress.ip_address(text) for text in texts]


async def test_the_first_that_answers_wins() -> None:
    async with target() as server:
        with await connect(addresses("127.0.0.9", "127.0.0.1"), server.port, seconds=10) as sock:
            assert sock.getpeername() == ("127.0.0.1", server.port)
            assert not sock.getblocking()


async def test_when_none_answers_the_error_is_reported() -> None:
    async with target() as server:
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        await connect(addresses("127.0.0.1", "127.0.0.2"), port, seconds=10)


class Network:
    """Attempts to connect, whose ends are decided here: an answer, an error, or none for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: dict[str, OSError | None]) -> None:
        self.ends = ends
        """By address: an error, or None for one that answers; others hang."""
        self.begun: list[str] = []
        self.sockets: list[socket.socket] = []
        self.answered = asyncio.Event()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_connect", self.sock_connect)
        monkeypatch.setattr(loop, "getaddrinfo", None)

    async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.begun.append(address[0])
        self.sockets.append(sock)
        if address[0] not in self.ends:
            await asyncio.Event().wait()
        if (error := self.ends[address[0]]) is not None:
            raise error
        self.answered.set()

    def open(self) -> list[socket.socket]:
        return [sock for sock in self.sockets if sock.fileno() >= 0]


async def test_the_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = ["2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::3", "192.0.2.2"]
    network = Network(monkeypatch, {address: ConnectionRefusedError(111, "refused") for address in mixed})
    for given, tried in (
        (mixed, ["2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2", "2001:db8::3"]),
        (["192.0.2.1", "2001:db8::1"], ["192.0.2.1", "2001:db8::1"]),
    ):
        network.begun.clear()
        with pytest.raises(ConnectionRefusedError):
            await connect(addresses(*given), 443, seconds=10)
        assert network.begun == tried
    assert network.open() == []


async def test_an_address_that_hangs_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START", 0.01)
    network = Network(monkeypatch, {"192.0.2.3": None})
    with await connect(addresses("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"), 443, seconds=20) as sock:
        assert network.open() == [sock], "the others are closed"
    assert network.begun == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]


async def test_there_is_an_end_to_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START", 0.01)
    network = Network(monkeypatch, {})
    for hosts in (["192.0.2.1"], ["192.0.2.1", "2001:db8::1"]):
        with pytest.raises(TimeoutError):
            await connect(addresses(*hosts), 443, seconds=0.2)
    assert network.begun == ["192.0.2.1", "192.0.2.1", "2001:db8::1"]
    assert network.open() == []


async def test_different_errors_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(
        monkeypatch,
        {"192.0.2.1": ConnectionRefusedError(111, "refused"), "192.0.2.2": OSError(113, "No route to host")},
    )
    with pytest.raises(OSError, match="No route"):
        await connect(addresses("192.0.2.1", "192.0.2.2"), 443, seconds=10)
    with pytest.raises(ConnectionRefusedError, match="no address"):
        await connect([], 443, seconds=10)
    assert network.open() == []


async def test_a_cancelled_attempt_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START", 0.01)
    network = Network(monkeypatch, {})
    attempt = asyncio.create_task(connect(addresses("192.0.2.1", "192.0.2.2"), 443, seconds=20))
    await eventually(lambda: len(network.begun) == 2)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert network.open() == []


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_at_the_moment_of_the_answer_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The run may have been revoked: a connection that appears after that must not live."""
    monkeypatch.setattr(module, "HEAD_START", 0.01)
    network = Network(monkeypatch, {"192.0.2.2": None})
    attempt = asyncio.create_task(connect(addresses("192.0.2.1", "192.0.2.2"), 443, seconds=20))
    await network.answered.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    if attempt.cancel():
        with pytest.raises(asyncio.CancelledError):
            await attempt
    else:
        attempt.result().close()
    assert network.open() == []


def test_an_address_of_this_machine_is_known_as_such_without_a_connection() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    elsewhere = ipaddress.ip_address("192.0.2.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(elsewhere), 9))  # sends nothing
        except OSError:
            pytest.skip("there is no network here but loopback")
        ours = ipaddress.ip_address(sock.getsockname()[0])
    assert is_own(ours)
    assert not is_own(elsewhere)
    assert not is_own(ipaddress.ip_address("2001:db8::1"))
