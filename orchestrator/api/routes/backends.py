"""Backends: what can be run."""

from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, NoQuery
from orchestrator.api.requests import read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.adapter import BackendInfo


class BackendList(Answer):
    """The enabled backends."""

    backends: list[BackendInfo]


async def list_backends(request: web.Request) -> web.StreamResponse:
    """GET /v1/backends."""
    read_query(request, NoQuery)
    found = await request.app[context.RUNS].backends(user_id=context.identity_of(request).scope)
    return json_answer({"backends": found})


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/backends",
        handler=list_backends,
        tag="backends",
        summary="The enabled backends",
        replies=(Reply(description="Image, version, capabilities and credentials of each.", model=BackendList),),
    ),
)
