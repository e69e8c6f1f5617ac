"""The declarative route table: from one list come the router's entries and the OpenAPI document."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from orchestrator.api import context
from orchestrator.api.identity import Role, acting_for
from orchestrator.api.models.base import NoQuery, Query
from orchestrator.errors import ForbiddenError, PodmentorError, UnauthorizedError

_TOKEN_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One good answer.

    ``model``: a pydantic model or a record of the contract; with another ``media_type`` than JSON, what the answer is a
    stream of.  None: neither.  An empty ``media_type``: no body.
    """

    description: str
    status: int = 200
    model: type[Any] | None = None
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Response headers of this answer alone, with what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A request header that the route reads."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route, with all that a client must know.  ``public``: needs no token."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handler: Handler
    summary: str
    tag: str
    replies: tuple[Reply, ...]
    description: str = ""
    public: bool = False
    roles: tuple[Role, ...] = ("user", "service", "admin")
    """Whose tokens are good for it."""
    query: type[Query] = NoQuery
    body: type[BaseModel] | None = None
    headers: tuple[Header, ...] = ()
    errors: tuple[type[PodmentorError], ...] = ()


def register(app: web.Application, routes: Iterable[Route]) -> None:
    """Put the routes into the router, each behind the token check unless it is public."""
    for route in routes:
        handler = route.handler if route.public else _authenticated(route)
        app.router.add_route(route.method, route.path, handler)


def _authenticated(route: Route) -> Handler:
    async def checked(request: web.Request) -> web.StreamResponse:
        identity = await request.app[context.TOKENS].authenticate(_bearer(request))
        if identity.role not in route.roles:
            raise ForbiddenError(f"this needs a token with another role: {' or '.join(route.roles)}")
        request[context.IDENTITY] = acting_for(identity, request.headers.get("X-Podmentor-User"))
        return await route.handler(request)

    return checked


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token.strip()) <= _TOKEN_CHARS:
        raise UnauthorizedError("send a token: 'Authorization: Bearer …'")
    return token.strip()
