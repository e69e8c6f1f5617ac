"""Whether a backend could log in, for the settings of a user interface."""

from typing import Any, Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, PlainName, Query
from orchestrator.api.requests import read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import SandboxError, UnknownBackendError


class ProbeQuery(Query):
    """Which backend to ask."""

    backend: PlainName


class ProbeView(Answer):
    """Whether a backend's CLI is there and has something to log in with."""

    installed: bool
    authenticated: bool
    error: str | None = None
    """Why not; left out when all is well.  Never a secret."""


def probe_view(status: AuthStatus) -> dict[str, Any]:
    """ProbeView."""
    view: dict[str, Any] = {"installed": status.installed, "authenticated": status.authenticated}
    return view if status.error is None else {**view, "error": status.error}


async def probe_auth(request: web.Request) -> web.StreamResponse:
    """GET /ui/plugins/external_agent/auth/probe."""
    query = read_query(request, ProbeQuery)
    user_id = context.identity_of(request).user_id
    return json_answer(probe_view(await request.app[context.RUNS].probe(query.backend, user_id=user_id)))


ROUTES: Final = (
    Route(
        method="GET",
        path="/ui/plugins/external_agent/auth/probe",
        handler=probe_auth,
        tag="backends",
        summary="Whether a backend's CLI is there and could log in",
        description="The CLI itself is asked, in a container without a network: what the provider thinks of the "
        "credential is not known. It has 5 seconds to answer.",
        query=ProbeQuery,
        replies=(Reply(description="What the CLI says.", model=ProbeView),),
        errors=(UnknownBackendError, SandboxError),
    ),
)
