"""Users' own keys, and which credential a run would use.

A key is written and never read back.  Everybody has their own keys only; a ``service`` has those of the user it acts
for; an admin may look at and remove another user's, but not give one: what is paid with it is that user's.
"""

from typing import Annotated, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import Field, SecretStr

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, Body, NoQuery, PlainName, UserQuery
from orchestrator.api.requests import path_name, read_body, read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.credentials import KeyInfo, SourceName
from orchestrator.errors import (
    ForbiddenError,
    NotFoundError,
    SecretUnreadableError,
    UnknownBackendError,
    VaultUnavailableError,
)

_KEYS: Final = "/v1/keys"
_UI_KEYS: Final = "/ui/plugins/external_agent/byo-keys"


class KeyBody(Body):
    """The user's own key for a backend."""

    api_key: Annotated[
        SecretStr, Field(min_length=1, max_length=8192, json_schema_extra={"pattern": r"^\s*[!-~]{8,4096}\s*$"})
    ]
    """8 to 4096 visible ASCII characters.  Kept encrypted, never given back."""


class ExplainQuery(UserQuery):
    """Which credential."""

    backend: PlainName


class KeyList(Answer):
    """A user's own keys."""

    keys: list[KeyInfo]


class SourceView(Answer):
    """One credential source."""

    source: SourceName
    chosen: bool
    reason: str


class ExplainView(Answer):
    """Which credential a run would use, and why."""

    user_id: str
    backend: str
    sources: list[SourceView]
    """In the order in which they are asked; none chosen: a run ends with `auth_required`."""


async def list_keys(request: web.Request) -> web.StreamResponse:
    """GET /v1/keys."""
    user_id = _whose(request, read_query(request, UserQuery))
    found = await request.app[context.OWN_KEYS].list_keys(user_id=user_id)
    return json_answer({"keys": found})


async def get_key(request: web.Request) -> web.StreamResponse:
    """GET /v1/keys/{backend}."""
    user_id = _whose(request, read_query(request, UserQuery))
    return json_answer(await request.app[context.OWN_KEYS].get(user_id=user_id, backend=path_name(request, "backend")))


async def put_key(request: web.Request) -> web.StreamResponse:
    """PUT /v1/keys/{backend}."""
    read_query(request, NoQuery)
    backend = path_name(request, "backend")
    body = await read_body(request, KeyBody)
    who = context.identity_of(request)
    info = await request.app[context.OWN_KEYS].put(
        user_id=who.user_id, backend=backend, api_key=body.api_key.get_secret_value(), actor=who.actor
    )
    return json_answer(info)


async def delete_key(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/keys/{backend}."""
    user_id = _whose(request, read_query(request, UserQuery))
    await request.app[context.OWN_KEYS].delete(
        user_id=user_id, backend=path_name(request, "backend"), actor=context.identity_of(request).actor
    )
    return web.Response(status=204)


async def explain_auth(request: web.Request) -> web.StreamResponse:
    """GET /v1/auth/explain."""
    query = read_query(request, ExplainQuery)
    user_id = _whose(request, query)
    sources = await request.app[context.CREDENTIALS].explain(user_id=user_id, backend=query.backend)
    return json_answer({"user_id": user_id, "backend": query.backend, "sources": sources})


def _whose(request: web.Request, query: UserQuery) -> str:
    who = context.identity_of(request)
    if query.user is None or query.user == who.user_id:
        return who.user_id
    if who.role != "admin":
        raise ForbiddenError("only an admin may name another user")
    return query.user


def _key_routes(base: str, *, suffix: str) -> tuple[Route, ...]:
    one, unreadable = f"{base}/{{backend}}", (VaultUnavailableError,)

    def named(handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        handle.__name__ = getattr(handler, "__name__", "") + suffix
        return handle

    return (
        Route(
            method="GET",
            path=base,
            handler=named(list_keys),
            tag="keys",
            summary="The user's own keys",
            query=UserQuery,
            errors=unreadable,
            replies=(Reply(description="What is known of them, never a value.", model=KeyList),),
        ),
        Route(
            method="GET",
            path=one,
            handler=named(get_key),
            tag="keys",
            summary="One of them",
            query=UserQuery,
            errors=(*unreadable, NotFoundError),
            replies=(Reply(description="What is known of it, never its value.", model=KeyInfo),),
        ),
        Route(
            method="PUT",
            path=one,
            handler=named(put_key),
            tag="keys",
            summary="Store a key",
            description="It takes the place of the one before and is used for this user's runs from now on.",
            body=KeyBody,
            errors=(*unreadable, UnknownBackendError),
            replies=(Reply(description="What is known of it.", model=KeyInfo),),
        ),
        Route(
            method="DELETE",
            path=one,
            handler=named(delete_key),
            tag="keys",
            summary="Remove a key",
            description="Runs that have begun with it go on.",
            query=UserQuery,
            errors=(*unreadable, NotFoundError),
            replies=(Reply(status=204, description="Removed.", media_type=""),),
        ),
    )


ROUTES: Final = (
    *_key_routes(_KEYS, suffix=""),
    *_key_routes(_UI_KEYS, suffix="_ui"),
    Route(
        method="GET",
        path="/v1/auth/explain",
        handler=explain_auth,
        tag="keys",
        summary="Which credential a run would use, and why",
        query=ExplainQuery,
        errors=(UnknownBackendError, VaultUnavailableError, SecretUnreadableError),
        replies=(Reply(description="Every place where one may be, in their order.", model=ExplainView),),
    ),
)
