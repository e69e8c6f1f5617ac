"""Accounts: users' own subscriptions."""

from typing import Annotated

from pydantic import Field

from orchestrator.api.models.base import MAX_WAIT_SECONDS, Answer, UserQuery
from orchestrator.contract.accounts import AccountRecord, DisconnectMode


class DisconnectQuery(UserQuery):
    """How to disconnect while runs use the account."""

    mode: DisconnectMode | None = None
    """`wait`: let them finish.  `cancel`: end them.  Without it: 409 while there are any."""
    timeout: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 30.0
    """Answer after so many seconds at the latest; what was asked for is done all the same."""


class AccountList(Answer):
    """A user's subscriptions."""

    accounts: list[AccountRecord]
