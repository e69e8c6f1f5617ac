"""Runs: make, look at, end."""

import asyncio
from datetime import datetime
from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import NoQuery
from orchestrator.api.models.events import Event
from orchestrator.api.models.runs import (
    EgressBody,
    RunBody,
    RunListQuery,
    RunPage,
    RunView,
    WaitedRun,
    WaitQuery,
    run_in_list,
    run_request,
    run_url,
    run_view,
    waited_view,
)
from orchestrator.api.requests import (
    KEY_FORM,
    accepts,
    idempotency_key,
    path_name,
    read_body,
    read_query,
    trace_context,
)
from orchestrator.api.routes.events import resume_point
from orchestrator.api.routing import Header, Reply, Route
from orchestrator.api.streams import send_events, sse_form
from orchestrator.contract.runs import RunFilter, RunRecord
from orchestrator.errors import (
    ConflictError,
    NotFoundError,
    PayloadTooLargeError,
    QueueFullError,
    SandboxError,
    ShuttingDownError,
    UnknownBackendError,
)

IDEMPOTENCY: Final = Header(
    name="Idempotency-Key",
    description="1 to 200 printable characters. The same key with the same request gives the run that it made.",
    schema={"type": "string", "pattern": f"^{KEY_FORM.pattern}$", "minLength": 1, "maxLength": 200},
)
TRACEPARENT: Final = Header(
    name="traceparent",
    description="W3C trace context: the run's trace becomes part of it, where traces are sent. A wrong one counts"
    " as none.",
    schema={"type": "string", "examples": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]},
)
STEP_SECONDS = 5.0
"""How soon ``wait_for_end`` notices that the client has gone."""
_LOCATION: Final = {"Location": "The path of the run."}
SUBMIT_ERRORS: Final = (
    UnknownBackendError,
    NotFoundError,
    ConflictError,
    PayloadTooLargeError,
    QueueFullError,
    ShuttingDownError,
)


async def create_run(request: web.Request) -> web.StreamResponse:
    """POST /v1/runs."""
    app, who = request.app, context.identity_of(request)
    options = read_query(request, WaitQuery)
    body = await read_body(request, RunBody)
    check_query(request, body.query)
    wanted = run_request(body, who, key=idempotency_key(request), trace=trace_context(request))
    after = resume_point(request, 0)
    record = await app[context.RUNS].submit(wanted)
    location = {"Location": run_url(record.run_id)}
    if accepts(request, "text/event-stream"):
        return await send_events(request, record, sse_form(), after=after, headers=location)
    if options.wait:
        record = await wait_for_end(request, record.run_id, timeout=options.timeout)
        if record.state == "finished":
            return json_answer(waited_view(record), headers=location)
    return json_answer(run_view(record), status=202, headers=location)


def check_query(request: web.Request, query: str) -> None:
    """Raise PayloadTooLargeError for a prompt that is longer than the configuration allows."""
    longest = request.app[context.CONFIG].server.max_query_chars
    if len(query) > longest:
        raise PayloadTooLargeError(
            f"query: {len(query)} characters, at most {longest} are taken: put the rest into a file of the repo"
        )


async def wait_for_end(request: web.Request, run_id: str, *, timeout: float) -> RunRecord:
    """The run once it has finished; as it is after ``timeout`` seconds, at shutdown, or when the client has gone."""
    runs, scope = request.app[context.RUNS], context.identity_of(request).scope
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        step = min(max(deadline - loop.time(), 0.0), STEP_SECONDS)
        waiter = request.app[context.TASKS].spawn(runs.wait(run_id, user_id=scope, timeout=step), name=f"wait {run_id}")
        try:
            await asyncio.wait({waiter})
        finally:
            waiter.cancel()
        if waiter.cancelled():
            return await runs.get(run_id, user_id=scope)
        record = waiter.result()
        if record.state == "finished" or request.transport is None or loop.time() >= deadline:
            return record


async def list_runs(request: web.Request) -> web.StreamResponse:
    """GET /v1/runs."""
    query = read_query(request, RunListQuery)
    wanted = RunFilter(
        user_id=context.identity_of(request).scope,
        backend=query.backend,
        state=query.state,
        outcome=query.outcome,
        subagent_id=query.subagent_id,
        since=_moment(query.since),
        until=_moment(query.until),
        limit=query.limit + 1,
        before=query.before,
        prefix=query.prefix,
    )
    found = await request.app[context.RUNS].list_runs(wanted)
    page = found[: query.limit]
    more = page[-1].run_id if len(found) > query.limit else None
    return json_answer({"runs": [run_in_list(record) for record in page], "next_before": more})


def _moment(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="microseconds").replace("+00:00", "Z")


async def get_run(request: web.Request) -> web.StreamResponse:
    """GET /v1/runs/{run_id}."""
    options = read_query(request, WaitQuery)
    scope = context.identity_of(request).scope
    record = await request.app[context.RUNS].get(path_name(request, "run_id"), user_id=scope)
    if options.wait:
        record = await wait_for_end(request, record.run_id, timeout=options.timeout)
    return json_answer(run_view(record))


async def cancel_run(request: web.Request) -> web.StreamResponse:
    """POST /v1/runs/{run_id}/cancel."""
    read_query(request, NoQuery)
    who = context.identity_of(request)
    run_id = path_name(request, "run_id")
    return json_answer(run_view(await request.app[context.RUNS].cancel(run_id, user_id=who.scope, actor=who.actor)))


async def allow_egress(request: web.Request) -> web.StreamResponse:
    """POST /v1/runs/{run_id}/egress."""
    read_query(request, NoQuery)
    who = context.identity_of(request)
    body = await read_body(request, EgressBody)
    record = await request.app[context.RUNS].allow_egress(
        path_name(request, "run_id"),
        host=body.host,
        port=body.port,
        user_id=who.scope,
        privileged=who.role == "admin",
        actor=who.actor,
    )
    return json_answer(run_view(record))


async def get_log(request: web.Request) -> web.StreamResponse:
    """GET /v1/runs/{run_id}/log."""
    read_query(request, NoQuery)
    scope = context.identity_of(request).scope
    path = await request.app[context.RUNS].log_path(path_name(request, "run_id"), user_id=scope)
    if not await asyncio.to_thread(path.is_file):
        raise NotFoundError("the run has no log (yet)")
    return web.FileResponse(path, headers={"Content-Type": "text/plain; charset=utf-8"})


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/runs",
        handler=create_run,
        tag="runs",
        summary="Start a run",
        description="Answers 202 at once; with `Accept: text/event-stream` the events themselves; with `?wait=1` the"
        " finished run. A client that disconnects does not end the run.",
        query=WaitQuery,
        body=RunBody,
        headers=(IDEMPOTENCY, TRACEPARENT),
        errors=SUBMIT_ERRORS,
        replies=(
            Reply(description="Finished (`wait`), or the stream of events.", model=WaitedRun, headers=_LOCATION),
            Reply(description="", model=Event, media_type="text/event-stream"),
            Reply(
                status=202,
                description="Accepted, or not finished within `timeout`.",
                model=RunView,
                headers=_LOCATION,
            ),
        ),
    ),
    Route(
        method="GET",
        path="/v1/runs",
        handler=list_runs,
        tag="runs",
        summary="List runs, newest first",
        query=RunListQuery,
        replies=(Reply(description="A page.", model=RunPage),),
    ),
    Route(
        method="GET",
        path="/v1/runs/{run_id}",
        handler=get_run,
        tag="runs",
        summary="One run",
        description="At once; with `?wait=1` when it has finished, or as it is when `timeout` is over.",
        query=WaitQuery,
        errors=(NotFoundError,),
        replies=(Reply(description="The run.", model=RunView),),
    ),
    Route(
        method="POST",
        path="/v1/runs/{run_id}/cancel",
        handler=cancel_run,
        tag="runs",
        summary="End a run",
        description="Idempotent; answers at once. The events tell when it has ended.",
        errors=(NotFoundError,),
        replies=(Reply(description="The run as it is.", model=RunView),),
    ),
    Route(
        method="POST",
        path="/v1/runs/{run_id}/egress",
        handler=allow_egress,
        tag="runs",
        summary="Let a run reach one more host",
        description="For the rest of the run; the agent's next attempt passes. Idempotent.",
        body=EgressBody,
        errors=(NotFoundError, ConflictError, SandboxError),
        replies=(Reply(description="The run as it is.", model=RunView),),
    ),
    Route(
        method="GET",
        path="/v1/runs/{run_id}/log",
        handler=get_log,
        tag="runs",
        summary="The raw log",
        description="Everything that the CLI printed, as conmon wrote it: `<time> stdout|stderr P|F <bytes>`."
        " `Range` is honoured.",
        errors=(NotFoundError,),
        replies=(Reply(description="The log.", media_type="text/plain"),),
    ),
)
