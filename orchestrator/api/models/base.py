"""What the models of all resources are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config.models import PLAIN_NAME, USER_ID

MAX_WAIT_SECONDS = 3600.0
BIGGEST = 2**53
"""The largest whole number that every JSON reader keeps exact."""

PlainName = Annotated[str, Field(pattern=PLAIN_NAME)]
UserId = Annotated[str, Field(pattern=USER_ID)]


class Body(BaseModel):
    """Base of all bodies: strict, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Query(BaseModel):
    """Base of all query parameters: texts, so not strict; closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class NoQuery(Query):
    """No parameters."""


class UserQuery(Query):
    """Whose."""

    user: UserId | None = None
    """Another user than the asking one; only for tokens with the role `admin`."""


class Answer(BaseModel):
    """Base of all answers: closed.  Records of the contract that are members of an answer take these settings over."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
