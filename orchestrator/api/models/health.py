"""The service itself."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.api.models.base import Answer


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]
    instance: str
    """Tells services on one machine apart."""
    version: str
    embedded: bool
    """The service is inside a command (``podmentor run``, for example) and ends with it."""


class Readiness(BaseModel):
    """Whether runs can be taken, and what stands in the way."""

    model_config = ConfigDict(extra="allow")

    ready: bool
