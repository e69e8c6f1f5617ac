"""Bounds that the gateway and the proxy of a run share.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MEBI: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run's gateway, and of its proxy beside it."""

    body_bytes: int = 64 * MEBI
    """Size of one request's body at the gateway."""
    connections: int = 64
    """Open at once."""
    idle_seconds: float = 600.0
    """Between two bytes, in either direction."""
    connect_seconds: float = 30.0
    """To reach the provider or the host."""
