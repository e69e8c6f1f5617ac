"""Who is asking: what a token proves, and for whom a service may act.  Pure."""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from orchestrator.config.models import PLAIN_NAME, USER_ID, USER_ID_WORDS
from orchestrator.errors import ForbiddenError, InvalidRequestError

Role: TypeAlias = Literal["user", "service", "admin", "metrics"]
"""``metrics`` reads /metrics and nothing else."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)
LOCAL_OWNER: Final = "local"
"""The user id of whoever holds the local token; nobody else may have it, since that user's repos may be paths."""
_PLAIN = re.compile(PLAIN_NAME)
_USER = re.compile(USER_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller of one request."""

    user_id: str
    """Owner of what this request makes."""
    role: Role
    local_owner: bool = False
    """Has read the local token file, so is the operating-system user who runs the service: may name paths."""

    token_name: str | None = None
    """Of the token, when it acts for somebody else."""

    @property
    def actor(self) -> str:
        """Who asks, for the audit log: the token's role and its own name, for whomever it acts."""
        return f"{self.role}:{self.token_name or self.user_id}"

    @property
    def scope(self) -> str | None:
        """Whose things this caller sees; None: everybody's."""
        return None if self.role == "admin" else self.user_id


def is_plain_name(text: str) -> bool:
    """Whether ``text`` may be used as a name (and so in a path): letters, digits, ``.``, ``_``, ``-``, at most 64."""
    return _PLAIN.fullmatch(text) is not None


def is_user_id(text: str) -> bool:
    """Whether ``text`` may be the id of a user: a plain name or an e-mail address."""
    return _USER.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """``text``, when it can be the name of a user.  Raises InvalidRequestError; ``what`` says what was named."""
    if not is_user_id(text):
        raise InvalidRequestError(f"{what} must be a plain name or an e-mail address: {USER_ID_WORDS}")
    if text == LOCAL_OWNER:
        raise InvalidRequestError(f"{what} must not be {LOCAL_OWNER!r}: that name is kept for the local token")
    return text


def acting_for(identity: Identity, user: str | None) -> Identity:
    """The identity after the header that names a user.

    Only a ``service`` may send it.  Raises ForbiddenError for the other roles, also when they name themselves: a
    header that is sometimes believed is one that somebody will forge.
    """
    if user is None:
        return identity
    if identity.role != "service":
        raise ForbiddenError("only a token with the role 'service' may act for another user")
    return replace(identity, user_id=check_name(user, "X-Podmentor-User"), token_name=identity.user_id)
