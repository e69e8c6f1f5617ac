"""Events to a client, as server-sent events or as lines of JSON.

Two sides with a bounded buffer between: a task reads the journal and fills it, the handler empties it into the
socket.  So a burst goes out in few writes, silence is filled with heartbeats, and a client that takes nothing holds
back nothing but its own reader, until it is disconnected.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import isasyncgen
from typing import Any, Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import dumps
from orchestrator.contract.runs import RunRecord
from orchestrator.events import EventRecord

log = logging.getLogger(__name__)
_BUFFER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm:
    """How events are written down.  ``seq`` None: an event outside the journal, which must not move the position."""

    content_type: str
    greeting: bytes
    encode: Callable[[Mapping[str, Any]], bytes]


def sse_form(prefix: str = "") -> StreamForm:
    """Server-sent events named ``<prefix><kind>``, with ``id:`` = seq."""

    def encode(event: Mapping[str, Any]) -> bytes:
        position = "" if event["seq"] is None else f"id: {event['seq']}\n"
        return f"{position}event: {prefix}{event['kind']}\ndata: ".encode() + dumps(event) + b"\n\n"

    # no empty line behind it: some clients take what ends there for an event
    return StreamForm(content_type="text/event-stream", greeting=b"retry: 1000\n", encode=encode)


NDJSON: Final = StreamForm(content_type="application/x-ndjson", greeting=b"", encode=lambda event: dumps(event) + b"\n")


class Outbox:
    """Bytes on their way to one client, at most ``limit`` and one event more."""

    def __init__(self, limit: int = _BUFFER_BYTES) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self._ended = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self.broken = False
        """The journal could not be read to its end."""

    async def put(self, chunk: bytes) -> None:
        """Add, once there is room."""
        while self._size >= self._limit:
            self._emptied.clear()
            await self._emptied.wait()
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._filled.set()

    def end(self, *, broken: bool) -> None:
        """Nothing follows."""
        self._ended, self.broken = True, broken
        self._filled.set()

    async def take(self, timeout: float) -> bytes | None:
        """All that is there; empty after ``timeout`` seconds of silence; None at the end."""
        try:
            async with asyncio.timeout(timeout):
                await self._filled.wait()
        except TimeoutError:
            return b""
        if not self._chunks:
            return None
        taken = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        self._emptied.set()
        if not self._ended:
            self._filled.clear()
        return taken


async def send_events(
    request: web.Request,
    run: RunRecord,
    form: StreamForm,
    *,
    after: int,
    follow: bool = True,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer ``request`` with the events of ``run``, until the last one, the client's leaving, or our own shutdown."""
    app = request.app
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no", **(headers or {})})
    response.content_type = form.content_type
    await response.prepare(request)
    events = app[context.RUNS].events(
        run.run_id, user_id=context.identity_of(request).scope, after=after, follow=follow
    )
    outbox = Outbox()
    reader = app[context.TASKS].spawn(_read(events, outbox, form), name=f"events of {run.run_id}")
    try:
        await _write(response, outbox, form, run, app)
    except ConnectionError:
        log.debug("request %s: the client has gone", context.request_id_of(request))
    except TimeoutError:
        log.info("request %s: the client takes nothing any more, disconnecting it", context.request_id_of(request))
        _abort(request)
    finally:
        reader.cancel()
    if outbox.broken:
        _abort(request)  # a clean end would look like the end of the run
    return response


async def _read(events: AsyncIterator[EventRecord], outbox: Outbox, form: StreamForm) -> None:
    broken = True
    try:
        async with AsyncExitStack() as stack:
            if isasyncgen(events):
                await stack.enter_async_context(aclosing(events))
            async for record in events:
                await outbox.put(form.encode(record.to_dict()))
                if record.terminal:
                    break
        broken = False
    except asyncio.CancelledError:
        broken = False  # the service stops: the client may come back to where it was
        raise
    finally:
        outbox.end(broken=broken)


async def _write(
    response: web.StreamResponse, outbox: Outbox, form: StreamForm, run: RunRecord, app: web.Application
) -> None:
    stall = app[context.STALL_SECONDS]
    pulse = app[context.CONFIG].server.heartbeat_seconds
    data: bytes | None = form.greeting
    while data is not None:
        for start in range(0, len(data), _BUFFER_BYTES):
            await asyncio.wait_for(response.write(data[start : start + _BUFFER_BYTES]), stall)
        data = await outbox.take(pulse)
        if data == b"":
            data = form.encode(_heartbeat(run))
    if not outbox.broken:
        await asyncio.wait_for(response.write_eof(), stall)


def _heartbeat(run: RunRecord) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "seq": None,
        "ts": now,
        "run_id": run.run_id,
        "subagent_id": run.subagent_id,
        "backend": run.backend,
        "kind": "status",
        "source": "orchestrator",
        "parent_tool_call_id": None,
        "data": {"phase": "heartbeat"},
    }


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
