"""What the server needs to know of a provider's protocol.

A protocol is a module beside this one that has the members of ``WireProtocol`` (``anthropic`` shows how), and an entry
in ``server.PROTOCOLS``.  It is pure: it reads requests and writes answers, and knows nothing of scenarios.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from orchestrator.scripted.steps import Conversation, Cut, Fail, Pause, Step

KeyPlace: TypeAlias = Literal["x-api-key", "bearer", "x-goog-api-key", "?key"]
"""Where a request has its key: a header of that name, ``Authorization: Bearer``, or the query."""

PROMPT_TOKENS: Final = 1200
"""Reported for every answer's prompt; made up, as all counts are."""
CACHED_TOKENS: Final = 300
"""How many of them were in the provider's cache."""

Piece: TypeAlias = bytes | Pause | Cut
"""A part of a streamed answer: bytes to send, or something to do at this point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for an answer.  ``path`` is without the query and without a scenario's prefix."""

    path: str
    body: dict[str, Any] = field(default_factory=dict)


class WireProtocol(Protocol):
    """A protocol.  The first of the registry that knows a request's method and path answers it."""

    @property
    def GENERATION(self) -> re.Pattern[str]:  # noqa: N802 - a constant of a module
        """The paths (whole) to which a POST asks for an answer."""
        ...

    @property
    def KEYS(self) -> tuple[KeyPlace, ...]:  # noqa: N802 - a constant of a module
        """Where the key may be, first match first."""
        ...

    def small(self, method: str, path: str) -> dict[str, Any] | None:
        """The answer of another endpoint, such as the list of models; None when there is none at this path."""
        ...

    def read_conversation(self, ask: Ask) -> Conversation:
        """What is asked.  Raises ValueError when the body is no request of this protocol."""
        ...

    def wants_stream(self, ask: Ask) -> bool:
        """Whether the answer should come as a stream."""
        ...

    def stream(
        self, steps: Sequence[Step], conversation: Conversation, *, ask: Ask, new_id: Callable[[str], str]
    ) -> Iterator[Piece]:
        """The answer as server-sent events.  ``new_id`` makes an id with the given prefix.  No step is a ``Fail``."""
        ...

    def fold(self, pieces: Sequence[bytes]) -> dict[str, Any]:
        """The same answer in one piece, for a request that does not want a stream."""
        ...

    def error_body(self, fail: Fail) -> dict[str, Any]:
        """The body of an answer with an HTTP error."""
        ...


def find_key(headers: Mapping[str, str], query: Mapping[str, str], places: Sequence[KeyPlace]) -> str | None:
    """The key of a request.  ``headers`` must not care about case."""
    for place in places:
        if place == "?key":
            key = query.get("key")
        elif place == "bearer":
            scheme, _, token = headers.get("authorization", "").partition(" ")
            key = token if scheme.lower() == "bearer" else None
        else:
            key = headers.get(place)
        if key:
            return key
    return None


def cut(text: str, size: int) -> list[str]:
    """``text`` in pieces of ``size`` characters, as a stream sends it."""
    return [text[start : start + size] for start in range(0, len(text), size)]
