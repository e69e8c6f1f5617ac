"""One run's reverse proxy to the model provider, on the run's own Unix socket.

Bytes stream through in both directions as they come.  What breaks off on one side breaks off on the other: a client
that goes away ends the request to the provider, a provider that breaks off is seen as broken off, not as ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from orchestrator.contract.gateway import GatewayGrant, Traffic
from orchestrator.relay.gateway.answers import Scrubber, clean_response_headers, reset_in, usage_limit_reached
from orchestrator.relay.gateway.policy import HOP_BY_HOP, Forward, Local, Refuse, decide
from orchestrator.relay.gateway.upstream import describe, through
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink, credentials, refusal
from orchestrator.relay.pace import Pace, Paced
from orchestrator.relay.sockets import RunSocket

log = logging.getLogger(__name__)

RESPONSE_DROPPED: Final = HOP_BY_HOP | {"content-length", "set-cookie", "alt-svc", "proxy-authenticate"}
LOGGED_REFUSALS: Final = 20
"""Per run: an agent must not be able to push everything else out of the log."""
ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    426: "invalid_request_error",
    503: "overloaded_error",
}


class BodyTooLargeError(Exception):
    """The request's body went over the limit while it was being passed on."""


class RunGateway:
    """One run's gateway, from ``open`` to ``aclose``.  ``session``: shared by all runs, with their ``limits`` in it."""

    def __init__(self, grant: GatewayGrant, *, session: aiohttp.ClientSession, limits: Limits, uplink: Uplink) -> None:
        self.grant = grant
        self.traffic = Traffic()
        self._session = session
        self._limits = limits
        self._uplink = uplink
        self._pace = Pace()
        self._handlers: set[asyncio.Task[object]] = set()
        self._socket = RunSocket(self._accept, backlog=limits.connections)
        self._web = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=2.0,
        )

    async def open(self) -> None:
        """Listen at the grant's socket.  Raises: OSError."""
        await self._socket.open(self.grant.socket_path)

    async def replace(self, grant: GatewayGrant) -> None:
        """Serve ``grant`` from the next request on; requests under way keep what they began with.  Raises: OSError."""
        previous, self.grant = self.grant, grant
        try:
            await self._socket.ensure(grant.socket_path)
        except OSError:
            self.grant = previous
            raise

    async def aclose(self) -> None:
        """Stop listening, remove the socket, cut what is under way; within about a second."""
        await self._socket.aclose()
        await self._web.shutdown(timeout=0.05)
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=1.0)

    def totals(self) -> Traffic:
        """The counts of this moment."""
        return replace(self.traffic, open=len(self._web.connections))

    def _accept(self) -> asyncio.Protocol:
        self.traffic.connections += 1
        if len(self._web.connections) >= self._limits.connections:
            return Busy()
        return Paced(self._web(), self._pace)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            return await self._serve(request)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  # the message might quote the request, so only its kind is logged
            log.error("run %s: %s while serving a request", self.grant.run_id, type(error).__name__)  # noqa: TRY400
            self.traffic.failures += 1
            return _cut(request) or _answer(502, "gateway_failed", "the gateway could not pass this request on")
        finally:
            self._handlers.discard(task)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        grant = self.grant
        decision = decide(
            method=request.method, target=request.raw_path, headers=tuple(request.headers.items()), grant=grant
        )
        match decision:
            case Local():
                return web.Response(text="podmentor gateway\n")
            case Refuse():
                return self._refuse(request, decision)
            case Forward():
                size = request.content_length
                if size is not None and size > self._limits.body_bytes:
                    return self._refuse(request, self._too_large())
                return await self._forward(request, decision, grant)

    def _refuse(self, request: web.BaseRequest, refusal: Refuse) -> web.Response:
        self.traffic.refusals += 1
        if self.traffic.refusals <= LOGGED_REFUSALS:
            log.info("run %s: %s refused: %s", self.grant.run_id, request.method, refusal.code)
        return _answer(refusal.status, refusal.code, refusal.message)

    def _too_large(self) -> Refuse:
        return Refuse(413, "body_too_large", f"the request's body is over {self._limits.body_bytes} bytes")

    async def _forward(self, request: web.BaseRequest, forward: Forward, grant: GatewayGrant) -> web.StreamResponse:
        headers = CIMultiDict(forward.headers)
        if request.body_exists and request.content_length is not None:
            headers["Content-Length"] = str(request.content_length)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        self.traffic.requests += 1
        url = URL(forward.url, encoded=True)
        proxy = self._uplink.proxy_for_upstream(url.host or "")
        if proxy is not None and url.scheme == "http":
            headers.update(credentials(proxy))
        try:
            answer = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=self._upload(request) if request.body_exists else None,
                allow_redirects=False,
                ssl=self._uplink.tls,
                **through(proxy),
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if isinstance(error.__cause__, BodyTooLargeError):
                return self._refuse(request, self._too_large())
            self.traffic.failures += 1
            sentence = describe(error, grant.route.upstream, proxy)
            log.warning("run %s: %s", grant.run_id, sentence)
            return _answer(504 if isinstance(error, TimeoutError) else 502, "upstream_unreachable", sentence)
        try:
            if proxy is not None and answer.status == 407:  # to a request by plain HTTP, which needs no tunnel
                self.traffic.failures += 1
                sentence = f"the model provider could not be reached: {refusal(407, known=proxy.username is not None)}"
                return _answer(502, "upstream_unreachable", sentence)
            return await self._pass_down(request, answer, grant)
        finally:
            answer.close()  # hard, unless the body was read to its end: the connection is back in the pool then

    async def _upload(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        size = 0
        while True:
            async with asyncio.timeout(self._limits.idle_seconds):
                chunk = await request.content.readany()
            if not chunk:
                return
            size += len(chunk)
            if size > self._limits.body_bytes:
                raise BodyTooLargeError
            self.traffic.bytes_up += len(chunk)
            yield chunk

    async def _pass_down(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, grant: GatewayGrant
    ) -> web.StreamResponse:
        if answer.status < 200:
            self.traffic.failures += 1
            return _answer(502, "upstream_unreachable", "the model provider wants another protocol")
        now = time.time()
        wait = reset_in(answer.status, answer.headers, longest=grant.route.longest_wait, now=now)
        if wait is not None:
            return web.json_response(usage_limit_reached(wait, now=now), status=answer.status)
        out = web.StreamResponse(
            status=answer.status,
            headers=CIMultiDict(clean_response_headers(answer.headers, RESPONSE_DROPPED, grant.api_key)),
        )
        if answer.content_length is not None:
            out.content_length = answer.content_length
        plain = answer.headers.get("Content-Encoding", "identity").strip().lower() == "identity"
        scrubber = Scrubber(grant.api_key.encode()) if plain and grant.api_key is not None else None
        await out.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                self.traffic.bytes_down += len(chunk)
                await self._write(out, scrubber.feed(chunk) if scrubber else chunk)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.traffic.failures += 1
            log.warning("run %s: an answer broke off (%s)", grant.run_id, type(error).__name__)
            with contextlib.suppress(OSError, TimeoutError):
                await self._write(out, scrubber.close() if scrubber else b"")
            return _cut(request) or out
        await self._write(out, scrubber.close() if scrubber else b"")
        await out.write_eof()
        return out

    async def _write(self, out: web.StreamResponse, data: bytes) -> None:
        if data:
            async with asyncio.timeout(self._limits.idle_seconds):
                await out.write(data)


def _cut(request: web.BaseRequest) -> web.StreamResponse | None:
    """Break off the connection when an answer has begun, so that its end is not taken for a clean one."""
    if request.writer.output_size == 0:
        return None
    if request.transport is not None:
        request.transport.close()
    raise ConnectionResetError("cut")


def _answer(status: int, code: str, message: str) -> web.Response:
    """An answer of the gateway itself, in the shape of the providers' errors."""
    kind = ERROR_TYPES.get(status, "api_error")
    body = {"type": "error", "error": {"type": kind, "message": f"podmentor gateway: {message}"}}
    return web.json_response(body, status=status, headers={"X-Podmentor-Refusal": code})


class Busy(asyncio.Protocol):
    """Answers a connection over the limit and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say so at once, whatever the request would have been."""
        assert isinstance(transport, asyncio.WriteTransport)
        message = "podmentor gateway: too many connections at once"
        body = json.dumps({"type": "error", "error": {"type": ERROR_TYPES[503], "message": message}}).encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            f"X-Podmentor-Refusal: too_many_connections\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
