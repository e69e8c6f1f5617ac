"""The protocols that the server speaks.  A new one is a module with the members of ``WireProtocol`` and a line here."""

from __future__ import annotations

from typing import Final

from orchestrator.scripted import anthropic, chat, gemini, responses
from orchestrator.scripted.wire import KeyPlace, WireProtocol

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (anthropic, responses, chat, gemini)
"""Paths that several of them know, such as the list of models, belong to the first."""

KEYS: Final[tuple[KeyPlace, ...]] = ("x-api-key", "bearer", "x-goog-api-key", "?key")
"""Where a key may be in a request that no protocol knows."""


def of_request(method: str, path: str) -> WireProtocol | None:
    """The protocol that answers this request; ``path`` without the query and without a scenario's prefix."""
    for protocol in PROTOCOLS:
        if (method == "POST" and protocol.GENERATION.fullmatch(path)) or protocol.small(method, path) is not None:
            return protocol
    return None
