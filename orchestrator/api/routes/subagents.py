"""Subagents: the conversations."""

from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import NoQuery
from orchestrator.api.models.subagents import (
    GcBody,
    SessionMapView,
    SubagentBody,
    SubagentList,
    SubagentListQuery,
    session_map,
)
from orchestrator.api.requests import path_name, read_body, read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.gc import GcRequest, GcResult
from orchestrator.contract.runs import SubagentRecord
from orchestrator.errors import ConflictError, ForbiddenError, NotFoundError, StorageError


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
        summary="List conversations",
        query=SubagentListQuery,
        replies=(Reply(description="All of them.", model=SubagentList),),
    ),
    Route(
        method="GET",
        path="/v1/subagents/{subagent_id}",
        handler=get_subagent,
        tag="subagents",
        summary="One conversation",
        errors=(NotFoundError,),
        replies=(Reply(description="The conversation.", model=SubagentRecord),),
    ),
    Route(
        method="PATCH",
        path="/v1/subagents/{subagent_id}",
        handler=change_subagent,
        tag="subagents",
        summary="Give a conversation another title",
        body=SubagentBody,
        errors=(NotFoundError,),
        replies=(Reply(description="The conversation.", model=SubagentRecord),),
    ),
    Route(
        method="DELETE",
        path="/v1/subagents/{subagent_id}",
        handler=delete_subagent,
        tag="subagents",
        summary="Remove a conversation with its home, workspace and runs",
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
        summary="The CLI's session behind each conversation",
        replies=(Reply(description="In the documented shape.", model=SessionMapView),),
    ),
)
