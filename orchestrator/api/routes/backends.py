"""Backends: what can be run."""

from typing import Final

from aiohttp import web

from orchestrator.api import keys
from orchestrator.api.bodies import read_query
from orchestrator.api.models.requests import NoQuery
from orchestrator.api.models.responses import BackendList
from orchestrator.api.routing import Reply, Route, json_answer
from orchestrator.api.views import backend_view


async def list_backends(request: web.Request) -> web.StreamResponse:
    """GET /v1/backends."""
    read_query(request, NoQuery)
    found = await request.app[keys.RUNS].backends(user_id=keys.identity_of(request).scope)
    return json_answer({"backends": [backend_view(info) for info in found]})


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
