"""The eight kinds of event as models, made from the records themselves so that they cannot differ."""

from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from orchestrator.api.models.base import BIGGEST, Query
from orchestrator.events import AgentEvent, Kind, Source, Status, Tokens


class EventsQuery(Query):
    """Which events, in which form."""

    after: Annotated[int, Field(ge=0, le=BIGGEST)] = 0
    """Only events with a higher ``seq``; ``Last-Event-ID`` wins over this."""
    follow: bool = True
    """false: end after the events that exist now."""
    format: Literal["sse", "ndjson"] | None = None
    """Without it the Accept header decides."""


class TokensView(BaseModel):
    """Token counts; those that the CLI does not report are left out."""

    model_config = ConfigDict(extra="forbid")

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class StatusData(BaseModel):
    """What the orchestrator has to say; the further members belong to the phase."""

    model_config = ConfigDict(extra="allow")

    phase: str


class EventEnvelope(BaseModel):
    """What all events have in common."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    seq: int | None
    """From 1, without gaps in a run; null only in a heartbeat, which is not part of the journal."""
    ts: str
    run_id: str
    subagent_id: str
    backend: str
    kind: Kind
    source: Source
    parent_tool_call_id: str | None
    """The tool call whose sub-agent speaks."""


def _data_model(event: type[Any]) -> type[BaseModel]:
    if event is Status:
        return StatusData
    hints = get_type_hints(event)
    members: dict[str, Any] = {}
    for field in fields(event):
        if field.name == "parent_tool_call_id":
            continue
        hint = TokensView if hints[field.name] is Tokens else hints[field.name]
        if field.default_factory is not MISSING:
            members[field.name] = (hint, Field(default_factory=field.default_factory))
        else:
            members[field.name] = (hint, ... if field.default is MISSING else field.default)
    return create_model(
        f"{event.__name__}Data", __config__=ConfigDict(extra="forbid"), __doc__=event.__doc__, **members
    )


def _event_model(event: type[Any]) -> type[BaseModel]:
    members: dict[str, Any] = {"kind": (Literal[event.kind], ...), "data": (_data_model(event), ...)}
    return create_model(f"{event.__name__}Event", __base__=EventEnvelope, __doc__=event.__doc__, **members)


EVENT_MODELS: tuple[type[BaseModel], ...] = tuple(_event_model(event) for event in get_args(AgentEvent))
_Union: Any = reduce(or_, EVENT_MODELS)


class Event(RootModel[Annotated[_Union, Field(discriminator="kind")]]):  # type: ignore[valid-type, unused-ignore]
    """One event of a run."""
