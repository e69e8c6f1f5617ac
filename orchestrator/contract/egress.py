"""The egress proxy of tier 1: what a run may reach through it, and what became of its attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

EGRESS_PORT = 8118
"""127.0.0.1 port inside the container that the entry relays to ``egress.sock``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGrant:
    """What one run may reach."""

    run_id: str
    socket_path: Path
    rules: tuple[str, ...]
    """Host patterns in their normal form (``orchestrator.config.hosts``); none: every host is denied."""
    expires_at: float
    """Unix time after which the grant ends by itself, whatever became of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamProxy:
    """The HTTP proxy through which this machine reaches the internet, where it may not do so by itself."""

    host: str
    """Normalised."""
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    no_proxy: tuple[str, ...] = ()
    """Hosts that are reached without it (``orchestrator.config.hosts.direct_pattern``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the relay reaches the internet, for all runs."""

    proxy: UpstreamProxy | None = None
    ca_file: Path | None = None
    """PEM file of authorities that are trusted beside the system's, for connections to providers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressReport:
    """What became of one attempt, or of ``count`` equal ones since the last report about the same target.

    Connections are reported when they have ended.  A run that tries very many targets gets reports about the first of
    a minute only; the others are counted under the host ``*``, port 0.
    """

    run_id: str
    verdict: Literal["allowed", "denied"]
    host: str
    port: int
    count: int = 1
    reason: str = ""
    """Why it was denied; a sentence without its final stop."""
    bytes_up: int = 0
    bytes_down: int = 0


EgressListener: TypeAlias = Callable[[EgressReport], Awaitable[None]]
