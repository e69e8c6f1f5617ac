"""What answers about keys and credentials look like, for OpenAPI."""

from orchestrator.api.models.responses import Answer
from orchestrator.contract.credentials import LinkName


class KeyView(Answer):
    """What is shown of a user's own key.  Times are RFC 3339 UTC."""

    user_id: str
    backend: str
    fingerprint: str
    """8 hex digits: the same for the same key of the same user, and nothing of the key itself."""
    created_at: str
    updated_at: str
    last_used_at: str | None
    """By a run; to the minute."""


class KeyList(Answer):
    """A user's own keys."""

    keys: list[KeyView]


class LinkView(Answer):
    """One place where a credential may be."""

    link: LinkName
    chosen: bool
    reason: str


class ExplainView(Answer):
    """Which credential a run would use, and why."""

    user_id: str
    backend: str
    links: list[LinkView]
    """In the order in which they are asked; none chosen: a run ends with `auth_required`."""
