"""Subagents (the conversations), their sessions, and the removal of old ones."""

from typing import Annotated, Any

from pydantic import Field

from orchestrator.api.models.base import Answer, Body, PlainName, Query
from orchestrator.contract.runs import TITLE_CHARS, SubagentRecord


class SubagentListQuery(Query):
    """Which subagents."""

    prefix: PlainName | None = None
    """Only subagents whose id begins with this."""


class SubagentBody(Body):
    """What can be changed of a subagent."""

    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARS, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """One line."""


class GcBody(Body):
    """What may be removed."""

    older_than_days: Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] | None = None
    """Used last so many days ago; absent: the configured `storage.retention_days`."""
    unapplied: bool = False
    """Also conversations with changes that nobody has applied or discarded."""
    dry_run: bool = False


class SubagentList(Answer):
    """Conversations, last used first."""

    subagents: list[SubagentRecord]


class SessionEntry(Answer):
    """The CLI's session behind one subagent."""

    backend: str
    backend_session_id: str
    created_at: str
    last_used_at: str


class SessionMap(Answer):
    """By subagent id."""

    session_map: dict[str, SessionEntry]


class SessionMapView(Answer):
    """The session map in the documented shape."""

    external_agent: SessionMap


def session_map(records: list[SubagentRecord]) -> dict[str, Any]:
    """SessionMapView: the conversations whose CLI has reported its session id."""
    known = [record for record in records if record.backend_session_id is not None]
    sessions = {
        record.subagent_id: {name: getattr(record, name) for name in SessionEntry.model_fields} for record in known
    }
    return {"external_agent": {"session_map": sessions}}
