"""What answers about changes look like, for OpenAPI."""

from typing import Literal

from orchestrator.api.models.responses import Answer


class ChangeView(Answer):
    """One difference between the workspace and the repo."""

    path: str
    change: Literal["added", "modified", "deleted", "renamed", "mode"]
    size: int | None
    binary: bool
    insertions: int
    deletions: int
    old_path: str | None
    """Where a renamed file was."""
    old_size: int | None
    mode: str | None
    """As git writes it: 100644, 100755 or 120000."""
    old_mode: str | None
    ignored: bool


class ChangeList(Answer):
    """All differences."""

    changes: list[ChangeView]
    ignored: list[ChangeView]
    """Those that git would ignore; they are only applied when asked for."""


class FileOutcomeView(Answer):
    """What became of one path (or would, in a dry run)."""

    path: str
    change: Literal["added", "modified", "deleted"]
    outcome: Literal["applied", "merged", "same", "kept", "conflict", "skipped"]
    reason: str | None


class ApplyView(Answer):
    """What an apply did: all of it or nothing."""

    applied: bool
    files: list[FileOutcomeView]
    branch: str | None
    commit: str | None


class DiscardView(Answer):
    """What was dropped."""

    discarded: list[str]


class RunChange(Answer):
    """What one run did to one path."""

    path: str
    change: Literal["changed", "deleted", "restored"]
    """restored: the workspace has there again what the repo has."""


class RunChangeList(Answer):
    """What one run changed."""

    changes: list[RunChange]


class CommitView(Answer):
    """A commit that the agent made."""

    commit: str
    parents: list[str]
    author: str
    authored_at: str
    subject: str
    refs: list[str]
    """Branches that end here."""


class CommitList(Answer):
    """The agent's commits, newest first (at most 1000)."""

    commits: list[CommitView]


class GcItemView(Answer):
    """A conversation, the log of a run, or a directory that belongs to nothing."""

    kind: Literal["conversation", "log", "leftover"]
    id: str
    bytes: int
    reason: str | None
    """Why it stays."""


class GcView(Answer):
    """What was removed (in a dry run: would be), and what stays though it is old."""

    removed: list[GcItemView]
    kept: list[GcItemView]
    bytes: int
    dry_run: bool
