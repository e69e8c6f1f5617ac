"""Connects to one of several addresses, each of which has been checked before; no name is looked up here.

The next address is tried when the one before has failed, or has not answered for a moment; the first that answers wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Final

from orchestrator.config.hosts import Address
from orchestrator.system.tasks import TaskOwner

HEAD_START: Final = 0.25
"""Seconds that an address has before the next one is tried beside it (RFC 8305)."""


def in_turns(addresses: Sequence[Address]) -> list[Address]:
    """The families in turns, beginning with that of the first address.  Pure."""
    first = [address for address in addresses if address.version == addresses[0].version]
    other = [address for address in addresses if address.version != addresses[0].version]
    return [address for address in chain.from_iterable(zip_longest(first, other)) if address is not None]


def is_own(address: Address) -> bool:
    """Whether a connection to ``address`` would stay on this machine.  Nothing is sent to find out.

    What listens on all addresses is often kept from strangers by a firewall, which does not stand between us and it.
    """
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(str(sock.getsockname()[0]).partition("%")[0]) == address


async def connect(addresses: Sequence[Address], port: int, *, seconds: float) -> socket.socket:
    """A connected, non-blocking socket to one of ``addresses``.

    Raises: TimeoutError, and the OSError of the last address when none can be reached.
    """
    owner = TaskOwner("dial")
    attempts: set[asyncio.Task[socket.socket]] = set()
    error: OSError = ConnectionRefusedError("there is no address")
    waiting = in_turns(addresses)
    try:
        async with asyncio.timeout(seconds):
            while waiting or attempts:
                if waiting:
                    attempts.add(owner.spawn(_connect(waiting.pop(0), port), name="connect", awaited=True))
                done, attempts = await asyncio.wait(
                    attempts, timeout=HEAD_START if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if (failure := task.exception()) is None:
                        return _winner(task, done)
                    if not isinstance(failure, OSError):
                        raise failure
                    error = failure
        raise error
    finally:
        for task in attempts:
            task.cancel()
        for late in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()


def _winner(first: asyncio.Task[socket.socket], done: set[asyncio.Task[socket.socket]]) -> socket.socket:
    for task in done - {first}:
        if task.exception() is None:
            task.result().close()
    return first.result()


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return sock
