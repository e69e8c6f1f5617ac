"""Records of the adapter contract.  This file imports nothing of ours, so that any adapter can use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a CLI gets to prove who it is.

    In the key modes ``api_key`` is the run's own gateway token, never the real key; with a subscription it is None and
    ``home`` is the directory that holds the CLI's own login.  ``extra_env`` is the operator's addition for the backend.
    """

    api_key: str | None = field(default=None, repr=False)
    home: Path | None = None
    extra_env: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AuthStatus:
    """Whether the CLI is there and whether it has something to log in with."""

    installed: bool
    authenticated: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The outcome of one run, as the tool interface gives it back."""

    final_text: str
    is_error: bool
    session_id: str | None = None
    stop_reason: str | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The two documented limits (bytes, seconds) and the further ones that every run has."""

    memory_max_bytes: int = 2 * 1024**3
    wall_clock_seconds: float = 300.0
    idle_seconds: float | None = None
    """No output for so long ends the run; None: never."""
    start_seconds: float = 90.0
    """From taken out of the queue to the CLI's first line of output."""
    output_max_bytes: int = 1024**3
    """Bytes of the CLI's stdout and stderr together."""
    pids_max: int = 512
    cpus: float | None = None
    disk_max_bytes: int = 4 * 1024**3
    """Of the home and of what the workspace has beyond the repo, together."""
