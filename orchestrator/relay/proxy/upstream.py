"""A connection to a host through the upstream proxy of this machine's network, by CONNECT."""

from __future__ import annotations

import asyncio
import socket

from orchestrator.config.hosts import as_address
from orchestrator.contract.egress import UpstreamProxy
from orchestrator.relay.network import credentials, refusal
from orchestrator.relay.proxy.connect import connect
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.response import ConnectAnswerReader
from orchestrator.relay.proxy.resolver import Resolver, UnknownNameError


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
