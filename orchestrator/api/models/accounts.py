"""Accounts: what requests may say and what answers look like."""

from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field

from orchestrator.api.models.requests import MAX_WAIT_SECONDS, PlainName, Query
from orchestrator.api.models.responses import Answer
from orchestrator.contract.accounts import AccountRecord, DisconnectMode
from orchestrator.contract.types import AuthStatus


class AccountQuery(Query):
    """Whose account."""

    user: PlainName | None = None
    """Another user's; only for tokens with the role `admin`."""


class DisconnectQuery(AccountQuery):
    """How to disconnect while runs use the account."""

    mode: DisconnectMode | None = None
    """`wait`: let them finish.  `cancel`: end them.  Without it: 409 while there are any."""
    timeout: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 30.0
    """Answer after so many seconds at the latest; what was asked for is done all the same."""


class AccountView(Answer):
    """A user's own subscription to one backend."""

    backend: str
    user_id: str
    mode: str
    """How the backend is configured; the subscription is used with `byo_subscription` only."""
    connected: bool
    """There is a login, and nobody has asked for its removal; whether the provider takes it, a run tells."""
    disconnecting: bool
    """It is removed when the runs that use it have ended."""
    run_ids: list[str]
    """The runs that use it now."""
    command: str
    """To be typed in a terminal on the machine where podmentor runs; it logs in."""


class AccountList(Answer):
    """A user's subscriptions."""

    accounts: list[AccountView]


class AuthStatusView(Answer):
    """What the CLI itself says about its login."""

    installed: bool
    authenticated: bool
    error: str | None


def account_view(record: AccountRecord) -> dict[str, Any]:
    """AccountView."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def auth_status_view(status: AuthStatus) -> dict[str, Any]:
    """AuthStatusView."""
    return {field.name: getattr(status, field.name) for field in fields(status)}
