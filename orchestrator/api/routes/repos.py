"""Repos: what runs can work on."""

from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, NoQuery
from orchestrator.api.requests import read_query
from orchestrator.api.routing import Reply, Route


class RepoInfo(Answer):
    """A repo of the configuration."""

    name: str
    """What a run names as its `repo`."""
    path: str | None
    """On the machine of the service; null for callers who are no admins."""


class RepoList(Answer):
    """By name."""

    repos: list[RepoInfo]


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
