"""Repos: what runs can work on."""

from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import NoQuery
from orchestrator.api.models.repos import RepoList
from orchestrator.api.requests import read_query
from orchestrator.api.routing import Reply, Route


async def list_repos(request: web.Request) -> web.StreamResponse:
    """GET /v1/repos."""
    read_query(request, NoQuery)
    shown = context.identity_of(request).role == "admin"
    repos = sorted(request.app[context.CONFIG].repos.items())
    return json_answer({"repos": [{"name": name, "path": str(path) if shown else None} for name, path in repos]})


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/repos",
        handler=list_repos,
        tag="repos",
        summary="The repos that runs may name",
        description="Those of the configuration. Paths are for admins; only the local owner may name another path.",
        replies=(Reply(description="By name.", model=RepoList),),
    ),
)
