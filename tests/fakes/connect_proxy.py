"""An HTTP proxy such as those at the edge of a company's network: CONNECT and plain requests, with Basic authentication."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """``names`` are the hosts that it knows, and the port on loopback where each is."""

    names: dict[str, int] = field(default_factory=dict)
    credentials: str | None = None
    """``USER:PASSWORD``; None: everybody may use it."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """What is answered for a host instead of a connection."""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """First lines of the requests."""
    open: int = 0
    """Connections of clients now."""

    def _status(self, fields: dict[str, str]) -> bytes | None:
        if self.credentials is None:
            return None
        wanted = "Basic " + base64.b64encode(self.credentials.encode()).decode()
        if fields.get("proxy-authorization") == wanted:
            return None
        return b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 2\r\n\r\nno"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        self.asked.append(first)
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        method, target, _ = first.split(" ")
        host = (target if method == "CONNECT" else target.split("/")[2]).rpartition(":")[0]
        answer = self._status(fields) or self.answers.get(host)
        if answer is None and host not in self.names:
            answer = b"HTTP/1.1 502 Bad Gateway\r\n\r\n"
        if answer is not None:
            writer.write(answer)
            if b" 200 " in answer:
                await reader.read()
            return
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.names[host])
        try:
            if method == "CONNECT":
                # What the host says first comes with the answer: there is no gap that a client could count on.
                early = b""
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        early = await there_reader.read(65536)
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n" + early)
            else:
                kept = [line for line in lines if line and not line.lower().startswith("proxy-")]
                path = "/" + target.split("/", 3)[3]
                there.write("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "", ""]).encode("latin-1"))
            await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        finally:
            there.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def connect_proxy(proxy: ConnectProxy | None = None) -> AsyncIterator[ConnectProxy]:
    """Served on loopback."""
    serving = proxy or ConnectProxy()
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await serving.serve(reader, writer)
        finally:
            serving.open -= 1
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(one(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    serving.port = server.sockets[0].getsockname()[1]
    try:
        yield serving
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
