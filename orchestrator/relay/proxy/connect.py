"""Connects to one of several addresses, each of which has been checked before; no name is looked up here."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from aiohappyeyeballs import start_connection

from orchestrator.config.hosts import Address

HEAD_START: Final = 0.25
"""Seconds that an address has before the next one is tried beside it (RFC 8305)."""


def is_own(address: Address) -> bool:
    """Whether a connection to ``address`` would stay on this machine.  Nothing is sent to find out.

    What listens on all addresses is often kept from strangers by a firewall, which does not stand between us and it.
    """
    with socket.socket(_family(address), socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(str(sock.getsockname()[0]).partition("%")[0]) == address


async def connect(addresses: Sequence[Address], port: int, *, seconds: float) -> socket.socket:
    """A connected, non-blocking socket to the first of ``addresses`` that answers.

    The families take turns, beginning with that of the first address; the next address is tried when the previous one
    has failed, or has not answered for ``HEAD_START``.
    Raises: TimeoutError; OSError when none can be reached, of the kind that all attempts failed with if it is one kind.
    """
    if not addresses:
        raise ConnectionRefusedError("there is no address")
    targets = [
        (_family(address), socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port)) for address in addresses
    ]
    async with asyncio.timeout(seconds):
        sock = await start_connection(targets, happy_eyeballs_delay=HEAD_START)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        # The library drops a cancellation that comes while it ends the other attempts: the run may be over by now.
        sock.close()
        raise asyncio.CancelledError
    return sock


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET
