import asyncio
import ipaddress
import socket

import pytest

from orchestrator.config.hosts import Address
from orchestrator.relay.proxy import connect as dial
from orchestrator.relay.proxy.connect import connect, in_turns, is_own
from tests.orchestrator.relay.proxied import target


def addresses(*texts: str) -> list[Address]:
    return [ipaddress.ip_address(text) for text in texts]


def test_the_families_take_turns() -> None:
    mixed = addresses("2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::3", "192.0.2.2")
    assert in_turns(mixed) == addresses("2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2", "2001:db8::3")
    assert in_turns(addresses("192.0.2.1", "2001:db8::1")) == addresses("192.0.2.1", "2001:db8::1")


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


class Stuck:
    """Attempts hang until they are told to go on, apart from one to the address that answers."""

    def __init__(self, answers: str) -> None:
        self.answers = answers
        self.begun: list[str] = []
        self.made: list[socket.socket] = []

    async def __call__(self, address: Address, port: int) -> socket.socket:
        self.begun.append(str(address))
        if str(address) != self.answers:
            await asyncio.Event().wait()
        sock = socket.socket()
        self.made.append(sock)
        return sock


async def test_an_address_that_hangs_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "HEAD_START", 0.01)
    stuck = Stuck("192.0.2.3")
    monkeypatch.setattr(dial, "_connect", stuck)
    with await connect(addresses("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"), 443, seconds=20) as sock:
        assert stuck.made == [sock]
    assert stuck.begun == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]


async def test_there_is_an_end_to_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck("none")
    monkeypatch.setattr(dial, "_connect", stuck)
    with pytest.raises(TimeoutError):
        await connect(addresses("192.0.2.1"), 443, seconds=0.05)
    assert stuck.begun == ["192.0.2.1"]


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
