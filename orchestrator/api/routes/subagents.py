"""Subagents: the conversations."""

from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, Body, NoQuery, PlainName, Query
from orchestrator.api.requests import path_name, read_body, read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.runs import TITLE_CHARS, GcRequest, GcResult, SubagentRecord
from orchestrator.errors import ConflictError, ForbiddenError, NotFoundError, StorageError


class SubagentListQuery(Query):
    """Which subagents."""

    prefix: PlainName | None = None
    """Only subagents whose id begins with this."""


class SubagentBody(Body):
    """What can be changed of a subagent."""

    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARS, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """One line."""


class GcBody(Body):
    """What may be removed."""

    older_than_days: Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] | None = None
    """Used last so many days ago; absent: the configured `storage.retention_days`."""
    unapplied: bool = False
    """Also subagents with changes that nobody has applied or discarded."""
    dry_run: bool = False


class SubagentList(Answer):
    """Conversations, last used first."""

    subagents: list[SubagentRecord]


class SessionEntry(Answer):
    """The CLI's session behind one subagent."""

    backend: str
    backend_session_id: str
    created_at: str
    last_used_at: str


class SessionMap(Answer):
    """By subagent id."""

    session_map: dict[str, SessionEntry]


class SessionMapView(Answer):
    """The session map in the documented shape."""

    external_agent: SessionMap


def session_map(records: list[SubagentRecord]) -> dict[str, Any]:
    """SessionMapView: the subagents whose CLI has reported its session id."""
    known = [record for record in records if record.backend_session_id is not None]
    sessions = {
        record.subagent_id: {name: getattr(record, name) for name in SessionEntry.model_fields} for record in known
    }
    return {"external_agent": {"session_map": sessions}}


async def list_subagents(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents."""
    query = read_query(request, SubagentListQuery)
    scope = context.identity_of(request).scope
    found = await request.app[context.RUNS].list_subagents(user_id=scope, prefix=query.prefix)
    return json_answer({"subagents": found})


async def get_subagent(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}."""
    subagent_id, scope = _target(request)
    return json_answer(await request.app[context.RUNS].get_subagent(subagent_id, user_id=scope))


async def change_subagent(request: web.Request) -> web.StreamResponse:
    """PATCH /v1/subagents/{subagent_id}."""
    subagent_id, scope = _target(request)
    body = await read_body(request, SubagentBody)
    return json_answer(await request.app[context.RUNS].retitle_subagent(subagent_id, body.title, user_id=scope))


async def delete_subagent(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/subagents/{subagent_id}."""
    subagent_id, scope = _target(request)
    await request.app[context.RUNS].delete_subagent(
        subagent_id, user_id=scope, actor=context.identity_of(request).actor
    )
    return web.Response(status=204)


async def collect(request: web.Request) -> web.StreamResponse:
    """POST /v1/gc."""
    read_query(request, NoQuery)
    body = await read_body(request, GcBody)
    wanted = GcRequest(older_than_days=body.older_than_days, unapplied=body.unapplied, dry_run=body.dry_run)
    who = context.identity_of(request)
    return json_answer(await request.app[context.RUNS].gc(wanted, user_id=who.scope, actor=who.actor))


async def get_session_map(request: web.Request) -> web.StreamResponse:
    """GET /v1/session-map."""
    read_query(request, NoQuery)
    return json_answer(
        session_map(await request.app[context.RUNS].list_subagents(user_id=context.identity_of(request).scope))
    )


def _target(request: web.Request) -> tuple[str, str | None]:
    read_query(request, NoQuery)
    return path_name(request, "subagent_id"), context.identity_of(request).scope


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/subagents",
        handler=list_subagents,
        tag="subagents",
        summary="List subagents",
        query=SubagentListQuery,
        replies=(Reply(description="All of them.", model=SubagentList),),
    ),
    Route(
        method="GET",
        path="/v1/subagents/{subagent_id}",
        handler=get_subagent,
        tag="subagents",
        summary="One subagent",
        errors=(NotFoundError,),
        replies=(Reply(description="The subagent.", model=SubagentRecord),),
    ),
    Route(
        method="PATCH",
        path="/v1/subagents/{subagent_id}",
        handler=change_subagent,
        tag="subagents",
        summary="Give a subagent another title",
        body=SubagentBody,
        errors=(NotFoundError,),
        replies=(Reply(description="The subagent.", model=SubagentRecord),),
    ),
    Route(
        method="DELETE",
        path="/v1/subagents/{subagent_id}",
        handler=delete_subagent,
        tag="subagents",
        summary="Remove a subagent with its home, workspace and runs",
        errors=(NotFoundError, ConflictError),
        replies=(Reply(status=204, description="Removed.", media_type=""),),
    ),
    Route(
        method="POST",
        path="/v1/gc",
        handler=collect,
        tag="subagents",
        summary="Remove what is old",
        body=GcBody,
        errors=(ForbiddenError, StorageError),
        description="Conversations and raw logs older than the retention. Never what is in use, nor changes that"
        " nobody took or dropped unless `unapplied` says so. For an admin or the local owner.",
        replies=(Reply(description="What was removed.", model=GcResult),),
    ),
    Route(
        method="GET",
        path="/v1/session-map",
        handler=get_session_map,
        tag="subagents",
        summary="The CLI's session behind each subagent",
        replies=(Reply(description="In the documented shape.", model=SessionMapView),),
    ),
)
