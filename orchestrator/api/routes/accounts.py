"""Accounts: users' own subscriptions, connected by the CLI's own login on the machine where podmentor runs."""

from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import MAX_WAIT_SECONDS, Answer, UserQuery
from orchestrator.api.requests import path_name, read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.accounts import AccountRecord, DisconnectMode
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import ConflictError, ForbiddenError, ImageMissingError, UnknownBackendError

_BASE: Final = "/ui/plugins/external_agent/subscription/{backend}"


class DisconnectQuery(UserQuery):
    """How to disconnect while runs use the account."""

    mode: DisconnectMode | None = None
    """`wait`: let them finish.  `cancel`: end them.  Without it: 409 while there are any."""
    timeout: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 30.0
    """Answer after so many seconds at the latest; what was asked for is done all the same."""


class AccountList(Answer):
    """A user's subscriptions."""

    accounts: list[AccountRecord]


async def list_accounts(request: web.Request) -> web.StreamResponse:
    """GET /v1/accounts."""
    user_id = _user(request, read_query(request, UserQuery))
    found = await request.app[context.ACCOUNTS].list_accounts(user_id=user_id)
    return json_answer({"accounts": found})


async def get_subscription(request: web.Request) -> web.StreamResponse:
    """GET …/subscription/{backend}."""
    user_id, backend = _user(request, read_query(request, UserQuery)), path_name(request, "backend")
    return json_answer(await request.app[context.ACCOUNTS].get(user_id=user_id, backend=backend))


async def connect_subscription(request: web.Request) -> web.StreamResponse:
    """POST …/subscription/{backend}/connect."""
    user_id, backend = _user(request, read_query(request, UserQuery)), path_name(request, "backend")
    actor = context.identity_of(request).actor
    record = await request.app[context.ACCOUNTS].connect(user_id=user_id, backend=backend, actor=actor)
    return json_answer(record)


async def verify_subscription(request: web.Request) -> web.StreamResponse:
    """POST …/subscription/{backend}/finished."""
    user_id, backend = _user(request, read_query(request, UserQuery)), path_name(request, "backend")
    return json_answer(await request.app[context.ACCOUNTS].verify(user_id=user_id, backend=backend))


async def disconnect_subscription(request: web.Request) -> web.StreamResponse:
    """DELETE …/subscription/{backend}."""
    query = read_query(request, DisconnectQuery)
    record = await request.app[context.ACCOUNTS].disconnect(
        user_id=_user(request, query),
        backend=path_name(request, "backend"),
        mode=query.mode,
        timeout=query.timeout,
        actor=context.identity_of(request).actor,
    )
    return json_answer(record, status=202 if record.disconnecting else 200)


def _user(request: web.Request, query: UserQuery) -> str:
    who = context.identity_of(request)
    if query.user is None or query.user == who.user_id:
        return who.user_id
    if who.role != "admin":
        raise ForbiddenError("only an admin may ask about another user's account")
    return query.user


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/accounts",
        handler=list_accounts,
        tag="accounts",
        query=UserQuery,
        summary="Your subscriptions",
        replies=(Reply(description="One for each backend that can use a subscription.", model=AccountList),),
    ),
    Route(
        method="GET",
        path=_BASE,
        handler=get_subscription,
        tag="accounts",
        query=UserQuery,
        summary="Your subscription to a backend",
        errors=(UnknownBackendError,),
        replies=(Reply(description="Whether it is connected.", model=AccountRecord),),
    ),
    Route(
        method="POST",
        path=_BASE + "/connect",
        handler=connect_subscription,
        tag="accounts",
        query=UserQuery,
        summary="Begin to connect",
        errors=(UnknownBackendError, ConflictError),
        description="Makes the HOME; `command` is what to type in a terminal on the machine where podmentor runs.",
        replies=(Reply(description="With the command that logs in.", model=AccountRecord),),
    ),
    Route(
        method="POST",
        path=_BASE + "/finished",
        handler=verify_subscription,
        tag="accounts",
        query=UserQuery,
        summary="Look whether the login is there",
        errors=(UnknownBackendError, ImageMissingError),
        description="Asks the CLI itself, in its container, without a network: whether the provider takes the login, "
        "a run tells.",
        replies=(Reply(description="What the CLI says.", model=AuthStatus),),
    ),
    Route(
        method="DELETE",
        path=_BASE,
        handler=disconnect_subscription,
        tag="accounts",
        query=DisconnectQuery,
        summary="Disconnect: remove the login and everything that the CLI has stored beside it",
        errors=(UnknownBackendError, ConflictError),
        description="Idempotent.",
        replies=(
            Reply(description="It is disconnected.", model=AccountRecord),
            Reply(status=202, description="It will be, when the runs that use it have ended.", model=AccountRecord),
        ),
    ),
)
