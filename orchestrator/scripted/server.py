"""The server: finds protocol and scenario of a request, and plays the answer.

A new protocol is a module with the members of ``WireProtocol`` and a line in ``PROTOCOLS``.  Gates are points of a
script where a stream waits until it is let through, so that a test needs no sleeps.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from aiohttp import web

from orchestrator.scripted import anthropic, chat, gemini, responses
from orchestrator.scripted.scenarios import named_in, play
from orchestrator.scripted.steps import Break, Cut, Fail, Pause
from orchestrator.scripted.wire import Ask, KeyPlace, Piece, WireProtocol, find_key

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (anthropic, responses, chat, gemini)
"""Paths that several of them know, such as the list of models, belong to the first."""

KEYS: Final[tuple[KeyPlace, ...]] = ("x-api-key", "bearer", "x-goog-api-key", "?key")
"""Where a key may be in a request that no protocol knows."""
MAX_BODY = 64 * 1024**2
CUT_AFTER = 0.2
"""Seconds between the last piece and the end of a connection that is cut."""
_PATH = re.compile(r"(?:/s/(?P<scenario>[\w-]+))?(?P<path>/.*)")
_SHOWN_HEADERS = (
    "x-api-key",
    "authorization",
    "x-goog-api-key",
    "user-agent",
    "anthropic-version",
    "anthropic-beta",
    "host",
)


def of_request(method: str, path: str) -> WireProtocol | None:
    """The protocol that answers this request; ``path`` without the query and without a scenario's prefix."""
    for protocol in PROTOCOLS:
        if (method == "POST" and protocol.GENERATION.fullmatch(path)) or protocol.small(method, path) is not None:
            return protocol
    return None


class Gate:
    """Closed at first."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._open = False
        self._passes = 0
        self._waiting = 0

    async def wait(self) -> None:
        """Wait to be let through."""
        async with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: self._open or self._passes > 0)
                if not self._open:
                    self._passes -= 1
            finally:
                self._waiting -= 1

    async def reached(self) -> None:
        """Wait until a stream waits here."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting > 0)

    async def release(self, times: int | None) -> None:
        """Let ``times`` streams through; None: open it for all to come."""
        async with self._changed:
            if times is None:
                self._open = True
            else:
                self._passes += times
            self._changed.notify_all()

    async def hold(self) -> None:
        """Close it again."""
        async with self._changed:
            self._open, self._passes = False, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """A request that came in."""

    method: str
    path: str
    """Without the query."""
    headers: dict[str, str]
    """Those that matter, names in lower case."""
    key: str | None
    """The key that was sent, in whichever header."""
    scenario: str | None
    """The one that was played; None when none was (a wrong key, another path)."""
    body: dict[str, Any] = field(default_factory=dict)


class ScriptedProvider:
    """``async with ScriptedProvider() as provider:`` serves on 127.0.0.1 at a free port.

    ``scenario`` is played unless the request names another.  With ``api_key`` any other key is refused with 401.
    ``pace``: seconds between two pieces of a stream, for people to watch.
    """

    def __init__(self, *, scenario: str = "text", api_key: str | None = None, pace: float = 0.0) -> None:
        self._scenario = scenario
        self._api_key = api_key
        self._pace = pace
        self._gates: defaultdict[str, Gate] = defaultdict(Gate)
        self._runner: web.AppRunner | None = None
        self._base_url = ""
        self.requests: list[SeenRequest] = []

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A stream that waits at a gate must not hold up the end.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self._base_url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def base_url(self) -> str:
        """Without a trailing slash; ``/s/NAME`` behind it chooses a scenario for all requests."""
        return self._base_url

    async def reached(self, gate: str, *, timeout: float = 30.0) -> None:
        """Wait until a stream waits at this gate.  Raises TimeoutError after ``timeout`` seconds."""
        async with asyncio.timeout(timeout):
            await self._gates[gate].reached()

    async def release(self, gate: str, *, times: int | None = None) -> None:
        """Let ``times`` streams through this gate; None: open it for good.  Gates are closed at first."""
        await self._gates[gate].release(times)

    async def hold(self, gate: str) -> None:
        """Close this gate again."""
        await self._gates[gate].hold()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        found = _PATH.fullmatch(request.path)
        ask = Ask(path=found["path"] if found else "", body=_object(raw))
        protocol = of_request(request.method, ask.path)
        key = find_key(request.headers, request.query, protocol.KEYS if protocol else KEYS)
        if found is None or protocol is None:
            self._note(request, key, None, ask.body)
            return _failed(PROTOCOLS[0], Fail(404, "there is nothing at this path"))
        if self._api_key is not None and not hmac.compare_digest((key or "").encode(), self._api_key.encode()):
            self._note(request, key, None, ask.body)
            return _failed(protocol, Fail(401))
        if (answer := protocol.small(request.method, ask.path)) is not None:
            self._note(request, key, None, ask.body)
            return web.json_response(answer)
        try:
            conversation = protocol.read_conversation(ask)
        except ValueError as error:
            self._note(request, key, None, ask.body)
            return _failed(protocol, Fail(400, str(error)))
        scenario = found["scenario"] or named_in(conversation) or self._scenario
        self._note(request, key, scenario, ask.body)
        steps = play(scenario, conversation)
        if isinstance(steps[0], Fail):
            return _failed(protocol, steps[0])
        pieces = protocol.stream(steps, conversation, ask=ask, new_id=_new_id)
        if protocol.wants_stream(ask):
            return await self._stream(request, pieces)
        broken = next((step for step in steps if isinstance(step, Break)), None)
        if broken is not None:
            return _failed(protocol, Fail(529, broken.message))
        return await self._whole(request, protocol, pieces)

    async def _stream(self, request: web.Request, pieces: Iterator[Piece]) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", **_request_id()}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    await response.write(piece)
                    if self._pace:
                        await asyncio.sleep(self._pace)
                elif not await self._at(request, piece):
                    return response
            await response.write_eof()
        except ConnectionError:
            return response  # the CLI went away, as it may
        return response

    async def _whole(self, request: web.Request, protocol: WireProtocol, pieces: Iterator[Piece]) -> web.StreamResponse:
        parts: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(piece)
            elif not await self._at(request, piece):
                return web.Response()
        return web.json_response(protocol.fold(parts), headers=_request_id())

    async def _at(self, request: web.Request, point: Pause | Cut) -> bool:
        """Do what the script wants here; False when the connection is gone."""
        if isinstance(point, Pause):
            await self._gates[point.gate].wait()
            return True
        if request.transport is not None:
            # Closed, not aborted, and not at once: a CLI that finds text and end together does not look at the text.
            await asyncio.sleep(CUT_AFTER)
            request.transport.close()
        return False

    def _note(self, request: web.Request, key: str | None, scenario: str | None, body: dict[str, Any]) -> None:
        headers = {name: request.headers[name] for name in _SHOWN_HEADERS if name in request.headers}
        self.requests.append(
            SeenRequest(
                method=request.method, path=request.path, headers=headers, key=key, scenario=scenario, body=body
            )
        )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw) if raw else {}
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _failed(protocol: WireProtocol, fail: Fail) -> web.Response:
    headers = _request_id()
    if fail.retry_after is not None:
        headers["retry-after"] = str(fail.retry_after)
    return web.json_response(protocol.error_body(fail), status=fail.status, headers=headers)


def _request_id() -> dict[str, str]:
    """Under the names that the providers give it."""
    name = _new_id("req_")
    return {"request-id": name, "x-request-id": name}


def _new_id(prefix: str) -> str:
    return prefix + uuid4().hex[:24]
