"""A scripted model provider, grants for it, and clients of a run's socket."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.gateway import GatewayGrant

TOKEN = "run-token-0123456789abcdef"
KEY = "sk-real-key-AAAABBBBCCCCDDDD"
AUTH = {"x-api-key": TOKEN}
MESSAGES = "http://gateway/v1/messages"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Provider:
    """Answers by ``handler``; remembers the head of every request."""

    url: str = ""
    handler: Handler | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.raw_path, {k.lower(): v for k, v in request.headers.items()}))
        if self.handler is None:
            return web.json_response({"hello": "there"})
        return await self.handler(request)


@contextlib.asynccontextmanager
async def provider_on_loopback() -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application(client_max_size=1 << 30, handler_args={"auto_decompress": False})
    app.router.add_route("*", "/{tail:.*}", provider.serve)
    server = TestServer(app)
    await server.start_server()
    provider.url = str(server.make_url("")).rstrip("/")
    try:
        yield provider
    finally:
        await server.close()


def route(upstream: str) -> GatewayRoute:
    return GatewayRoute(
        upstream=upstream, key_headers=("x-api-key", "authorization"), path_prefixes=("/v1/messages", "/v1/models")
    )


def grant_for(directory: Path, upstream: str, run_id: str = "run-1", **changes: Any) -> GatewayGrant:
    control = directory / run_id
    control.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "run_id": run_id,
        "socket_path": control / "gateway.sock",
        "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
        "route": route(upstream),
        "api_key": KEY,
        "expires_at": time.time() + 600,
    }
    return GatewayGrant(**{**values, **changes})


@contextlib.asynccontextmanager
async def agent(socket_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client inside the run."""
    connector = aiohttp.UnixConnector(path=str(socket_path))
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        yield session


async def exchange(socket_path: Path, request: bytes) -> bytes:
    """Send raw bytes, read until the other end closes."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
        writer.write(request)
        await writer.drain()
        data = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        return data


async def status(client: aiohttp.ClientSession, headers: dict[str, str] | None = None) -> int:
    """Ask the provider's API for an answer, read it to its end, and say its status."""
    async with client.post(MESSAGES, headers=headers) as answer:
        await answer.read()
        return answer.status
