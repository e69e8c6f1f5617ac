"""A small OTLP/HTTP receiver on loopback that keeps the spans it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """``spans`` in the order of their arrival; ``status``: what it answers; ``hang``: it does not."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.hang = asyncio.Event()
        self.hang.set()
        self.asked = 0
        self._news = asyncio.Condition()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        async with self._news:
            self.asked += 1
            self._news.notify_all()
        await self.hang.wait()
        if self.status == 200:
            message = ExportTraceServiceRequest.FromString(body)
            for group in message.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in group.resource.attributes})
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
            self.headers.append(dict(request.headers))
        async with self._news:
            self._news.notify_all()
        return web.Response(status=self.status)

    async def until(self, *, spans: int = 0, asked: int = 0) -> None:
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(lambda: len(self.spans) >= spans and self.asked >= asked)


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    found = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    found.url = f"http://127.0.0.1:{port}"
    try:
        yield found
    finally:
        found.hang.set()
        await runner.cleanup()
