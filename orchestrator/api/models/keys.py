"""Users' own keys, and which credential a run would use."""

from typing import Annotated

from pydantic import Field, SecretStr

from orchestrator.api.models.base import Answer, Body, PlainName, UserQuery
from orchestrator.contract.credentials import KeyInfo, LinkName


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


class LinkView(Answer):
    """One credential source."""

    link: LinkName
    chosen: bool
    reason: str


class ExplainView(Answer):
    """Which credential a run would use, and why."""

    user_id: str
    backend: str
    links: list[LinkView]
    """In the order in which they are asked; none chosen: a run ends with `auth_required`."""
