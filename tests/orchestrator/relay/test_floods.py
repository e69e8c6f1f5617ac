"""One run's connections in numbers, sizes and shapes that would hold up everybody else's."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from aiohttp import web

from orchestrator.relay.gateway.server import RunGateway
from orchestrator.relay.gateway.upstream import open_session
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from orchestrator.relay.pace import PIECE
from orchestrator.relay.proxy.http1.body import Chunked
from orchestrator.relay.proxy.server import REFUSED_AT_ONCE
from tests.fakes.resolver import ScriptedResolver
from tests.orchestrator.relay.proxied import eventually, plain, proxy_with, target
from tests.orchestrator.relay.support import TOKEN, Provider, exchange, grant_for

ONES = b"1\r\na\r\n" * 20_000
END = b"0\r\n\r\n"


async def test_connections_over_the_limit_take_few_descriptors_each_for_a_moment(directory: Path) -> None:
    limits = Limits(connections=2)
    resolver = ScriptedResolver(good_example=[["127.0.0.1"]])
    async with proxy_with(directory, "good.example", resolver=resolver, limits=limits) as running:
        clients: list[socket.socket] = []
        try:
            for _ in range(200):
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                clients.append(client)
                async with asyncio.timeout(20):
                    while True:  # the backlog is short, and the kernel gives no signal
                        with contextlib.suppress(BlockingIOError):
                            client.connect(str(running.path))
                            break
                        await asyncio.sleep(0.001)
                assert len(running.proxy._handshakes) <= limits.connections + REFUSED_AT_ONCE
            answered, silent = 0, 0
            for client in clients[limits.connections :]:
                async with asyncio.timeout(20):
                    answer = await asyncio.get_running_loop().sock_recv(client, 65536)
                answered += answer.startswith(b"HTTP/1.1 503 podmentor: too many connections")
                silent += answer == b""
            assert answered >= REFUSED_AT_ONCE
            assert silent > 0
            assert answered + silent == len(clients) - limits.connections
        finally:
            for client in clients:
                client.close()


async def test_a_chunked_body_is_read_in_small_pieces_and_passed_on_whole(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    feed = Chunked.feed

    def noting(self: Chunked, data: bytes) -> bytes:
        sizes.append(len(data))
        return feed(self, data)

    monkeypatch.setattr(Chunked, "feed", noting)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(len(ONES + END))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    async with target(serve) as server:
        rules = (f"good.example:{server.port}", f"127.0.0.1:{server.port}")
        resolver = ScriptedResolver(good_example=[["127.0.0.1"]])
        async with proxy_with(directory, *rules, resolver=resolver) as running:
            request = plain("good.example", server.port, "Transfer-Encoding: chunked", method="POST", body=ONES + END)
            answer = await running.said(request)
    assert answer.endswith(b"\r\n\r\n" + ONES + END)
    # Of both directions; what waits at the end of a piece is seen again with the next one.
    assert sum(sizes) >= 2 * len(ONES)
    assert max(sizes) <= PIECE


async def test_the_gateway_reads_in_small_pieces_too(
    provider: Provider, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    received = web.RequestHandler.data_received

    def noting(self: web.RequestHandler, data: bytes) -> None:
        if self._manager is gateway._web:
            sizes.append(len(data))
        received(self, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", noting)
    bodies = []

    async def keep(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(text="kept")

    provider.handler = keep
    grant, limits = grant_for(directory, provider.url), Limits()
    async with open_session(limits) as session:
        gateway = RunGateway(grant, session=session, limits=limits, uplink=Uplink())
        await gateway.open()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {TOKEN}\r\nTransfer-Encoding: chunked\r\n"
        answer = await exchange(grant.socket_path, head.encode() + b"Connection: close\r\n\r\n" + ONES + END)
        await gateway.aclose()
    assert answer.endswith(b"kept")
    assert bodies == [b"a" * 20_000]
    assert sum(sizes) >= len(ONES)
    assert max(sizes) <= PIECE


async def test_a_client_that_reads_no_answers_is_not_read_for_ever(provider: Provider, directory: Path) -> None:
    """Requests in a row, whose answers pile up: at some point no more are taken."""
    grant, limits = grant_for(directory, provider.url), Limits()
    async with open_session(limits) as session:
        gateway = RunGateway(grant, session=session, limits=limits, uplink=Uplink())
        await gateway.open()
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, str(grant.socket_path))
        sent, data = 0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        with contextlib.suppress(TimeoutError):
            while sent < 50 * 1024 * 1024:
                async with asyncio.timeout(2):
                    await loop.sock_sendall(client, data)
                sent += len(data)
        client.close()
        await eventually(lambda: not gateway._web.connections)
        await gateway.aclose()
    assert sent < 5 * 1024 * 1024
