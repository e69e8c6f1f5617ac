"""Making room: what is removed, what stays and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

GcKind: TypeAlias = Literal["conversation", "log", "leftover"]
"""``log``: the raw log of a run whose subagent stays.  ``leftover``: a directory that belongs to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcRequest:
    """``older_than_days`` None: the configured retention."""

    older_than_days: float | None = None
    unapplied: bool = False
    """Also subagents with changes that nobody has applied or discarded."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GcItem:
    """A subagent (``conversation``), the log of a run, or a directory that belongs to nothing."""

    kind: GcKind
    id: str
    bytes: int
    reason: str | None = None
    """Why it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcResult:
    """What was removed (in a dry run: would be), and what stays though it is old."""

    removed: tuple[GcItem, ...]
    kept: tuple[GcItem, ...]
    bytes: int
    """Disk space of all that was removed."""
    dry_run: bool
