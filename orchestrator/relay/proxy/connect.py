"""Connections to hosts: directly, or by CONNECT through the upstream proxy of this machine's network.

A direct one goes to one of several addresses, each of which has been checked before; of names only the upstream
proxy's own is looked up here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from aiohappyeyeballs import start_connection

from orchestrator.config.hosts import Address, as_address
from orchestrator.contract.egress import UpstreamProxy
from orchestrator.relay.network import credentials, refusal
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.response import ConnectAnswerReader
from orchestrator.relay.proxy.resolver import Resolver, UnknownNameError

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


class UpstreamProxyError(Exception):
    """The upstream proxy does not let us through.  The message is a sentence that names neither it nor credentials."""


async def connect_through(
    proxy: UpstreamProxy, host: str, port: int, *, resolver: Resolver, seconds: float
) -> tuple[socket.socket, bytes]:
    """A socket that leads to ``host:port``, and what the host has sent already.

    The proxy's own address is the operator's choice and not checked.
    Raises: UpstreamProxyError; TimeoutError.
    """
    literal = as_address(proxy.host)
    async with asyncio.timeout(seconds):
        try:
            addresses = [literal] if literal is not None else await resolver.resolve(proxy.host)
            sock = await connect(addresses, proxy.port, seconds=seconds)
        except UnknownNameError:
            raise UpstreamProxyError("the name of the network's proxy (egress.upstream_proxy) is not known") from None
        except TimeoutError:
            raise
        except OSError:
            raise UpstreamProxyError("the network's proxy (egress.upstream_proxy) could not be reached") from None
        try:
            return sock, await _ask(sock, proxy, host, port)
        except BaseException:
            sock.close()
            raise


async def _ask(sock: socket.socket, proxy: UpstreamProxy, host: str, port: int) -> bytes:
    loop = asyncio.get_running_loop()
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    fields = "".join(f"{name}: {value}\r\n" for name, value in {"Host": target, **credentials(proxy)}.items())
    reader = ConnectAnswerReader()
    try:
        await loop.sock_sendall(sock, f"CONNECT {target} HTTP/1.1\r\n{fields}\r\n".encode())
        status = None
        while status is None:
            if not (data := await loop.sock_recv(sock, 4096)):
                raise UpstreamProxyError("the network's proxy closed the connection without an answer")
            status = reader.feed(data)
    except WireError:
        raise UpstreamProxyError("the answer of the network's proxy is not HTTP/1") from None
    except OSError:
        raise UpstreamProxyError("the network's proxy broke off the connection") from None
    if 200 <= status < 300:
        return reader.rest
    raise UpstreamProxyError(refusal(status, known=proxy.username is not None))
