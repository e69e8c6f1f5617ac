"""A run's proxy, servers behind it, and clients in front of it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.contract.egress import EgressGrant, EgressReport
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from orchestrator.relay.proxy.server import RunProxy
from tests.fakes.resolver import ScriptedResolver

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Target:
    """A TCP server on loopback; ``connections`` counts those that it has seen."""

    port: int = 0
    connections: int = 0
    received: list[bytes] = field(default_factory=list)


@contextlib.asynccontextmanager
async def target(serve: Serve | None = None, host: str = "127.0.0.1") -> AsyncIterator[Target]:
    """Without ``serve``: says ``hello``, and keeps what it is sent until its end."""
    found = Target()
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if serve is not None:
                await serve(reader, writer)
            else:
                writer.write(b"hello")
                found.received.append(await reader.read(-1))
        except OSError:
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        task = asyncio.get_running_loop().create_task(one(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*tasks, return_exceptions=True)


def egress_grant(directory: Path, *rules: str, run_id: str = "run-1", **changes: Any) -> EgressGrant:
    control = directory / run_id
    control.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "run_id": run_id,
        "socket_path": control / "egress.sock",
        "rules": rules,
        "expires_at": time.time() + 600,
    }
    return EgressGrant(**{**values, **changes})


@dataclass
class Running:
    """A proxy that serves."""

    proxy: RunProxy
    resolver: ScriptedResolver
    path: Path
    reports: list[EgressReport]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def ask(self, data: bytes) -> Streams:
        """Send a head."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        self.writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def said(self, data: bytes) -> bytes:
        """Send everything and read to the end."""
        async with asyncio.timeout(20):
            reader, _ = await self.ask(data)
            return await reader.read(-1)

    async def connect(self, host: str, port: int) -> Streams:
        """A tunnel that works."""
        async with asyncio.timeout(20):
            reader, writer = await self.ask(connect(host, port))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            return reader, writer

    async def reported(self, count: int) -> list[EgressReport]:
        """The reports once there are so many."""
        await eventually(lambda: len(self.reports) >= count)
        return self.reports


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for something that gives no signal."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- there is nothing to wait on
            await asyncio.sleep(0.01)


async def to_end(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the end, or to where it is cut."""
    data = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(65536):
                data += piece
    return data


def connect(host: str, port: int) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def plain(host: str, port: int, *fields: str, method: str = "GET", body: bytes = b"", path: str = "/x") -> bytes:
    lines = [f"{method} http://{host}:{port}{path} HTTP/1.1", f"Host: {host}:{port}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


@contextlib.asynccontextmanager
async def proxy_with(
    directory: Path, *rules: str, resolver: ScriptedResolver, limits: Limits | None = None, uplink: Uplink | None = None
) -> AsyncIterator[Running]:
    grant = egress_grant(directory, *rules)
    reports: list[EgressReport] = []
    proxy = RunProxy(
        grant, resolver=resolver, limits=limits or Limits(), report=reports.append, uplink=uplink or Uplink()
    )
    await proxy.open()
    running = Running(proxy, resolver, grant.socket_path, reports)
    try:
        yield running
    finally:
        await proxy.aclose()
        for writer in running.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
