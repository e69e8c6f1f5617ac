"""The events of a run, as a stream."""

import re
from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.models.events import Event, EventsQuery
from orchestrator.api.requests import accepts, path_name, read_query
from orchestrator.api.routing import Header, Reply, Route
from orchestrator.api.streams import NDJSON, StreamForm, send_events, sse_form
from orchestrator.errors import InvalidRequestError, NotFoundError

UI_PREFIX: Final = "plugin.external_agent."
_SEQ = re.compile(r"[0-9]{1,15}")
_REPLIES: Final = (
    Reply(
        description="As server-sent events (`id` = seq, `event` = kind, `data` = the event), or one event a line.",
        model=Event,
        media_type="text/event-stream",
    ),
    Reply(description="", model=Event, media_type="application/x-ndjson"),
    Reply(
        status=204,
        description="Server-sent events were asked for behind the event that ended the run (`Last-Event-ID`): there is"
        " nothing to come back for.",
        media_type="",
    ),
)
_RESUME: Final = Header(
    name="Last-Event-ID",
    description="The last `seq` that was received; the stream goes on behind it.",
    schema={"type": "string", "pattern": f"^{_SEQ.pattern}$"},
)


def resume_point(request: web.Request, otherwise: int) -> int:
    """The ``seq`` after which to go on: the header that a browser sends when it reconnects, else ``otherwise``."""
    text = request.headers.get("Last-Event-ID", "")
    if not text:
        return otherwise
    if not _SEQ.fullmatch(text):
        raise InvalidRequestError("Last-Event-ID must be the seq of an event")
    return int(text)


async def get_events(request: web.Request) -> web.StreamResponse:
    """GET /v1/runs/{run_id}/events."""
    return await _stream(request, sse_form())


async def get_ui_events(request: web.Request) -> web.StreamResponse:
    """GET /ui/plugins/external_agent/runs/{run_id}/events."""
    return await _stream(request, sse_form(UI_PREFIX))


async def _stream(request: web.Request, sse: StreamForm) -> web.StreamResponse:
    query = read_query(request, EventsQuery)
    after = resume_point(request, query.after)
    lines = query.format == "ndjson" or (query.format is None and accepts(request, NDJSON.content_type))
    scope = context.identity_of(request).scope
    run = await request.app[context.RUNS].get(path_name(request, "run_id"), user_id=scope)
    reconnects = not lines and query.follow and "Last-Event-ID" in request.headers
    if reconnects and run.state == "finished" and after >= run.last_seq:
        return web.Response(status=204)  # to anything else a browser's EventSource would come back for ever
    return await send_events(request, run, NDJSON if lines else sse, after=after, follow=query.follow)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/runs/{run_id}/events",
        handler=get_events,
        tag="runs",
        summary="The events of a run",
        description="Replays what is journalled, then follows until the event that ends the run. In silence a"
        " `status` event with phase `heartbeat` (without `id`, not journalled) shows that the connection lives. A"
        " stream that ends without `completed` or `error` was cut by a restart of the service: resume it.",
        query=EventsQuery,
        headers=(_RESUME,),
        errors=(NotFoundError,),
        replies=_REPLIES,
    ),
    Route(
        method="GET",
        path="/ui/plugins/external_agent/runs/{run_id}/events",
        handler=get_ui_events,
        tag="ui",
        summary="The same, for the web interface",
        description=f"Server-sent events are named `{UI_PREFIX}<kind>`.",
        query=EventsQuery,
        headers=(_RESUME,),
        errors=(NotFoundError,),
        replies=_REPLIES,
    ),
)
