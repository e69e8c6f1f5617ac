"""What an agent has changed, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from orchestrator.contract.audit import SERVICE

OnConflict: TypeAlias = Literal["refuse", "merge", "theirs", "ours"]
CommitsForm: TypeAlias = Literal["bundle", "patches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One difference between the workspace and the repo."""

    path: str
    """Relative, ``/``-separated; bytes that are not UTF-8 appear as surrogate escapes."""
    change: Literal["added", "modified", "deleted", "renamed", "mode"]
    """``mode``: nothing but the executable bit."""
    size: int | None
    """In bytes; null: deleted, or no file."""
    binary: bool
    insertions: int
    deletions: int
    old_path: str | None = None
    """Where a renamed file was; it may have been edited too."""
    old_size: int | None = None
    mode: str | None = None
    """As git writes it: 100644, 100755, 120000 (link)."""
    old_mode: str | None = None
    ignored: bool = False
    """git would ignore it (.gitignore as the agent sees it, and the repo has no such file in its index)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """A commit that the agent made in its overlay."""

    commit: str
    parents: tuple[str, ...]
    author: str
    authored_at: str
    """RFC 3339."""
    subject: str
    refs: tuple[str, ...]
    """Branches (``refs/heads/…``, or ``HEAD``) that end here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSelection:
    """Which changes are meant.  ``paths`` empty: all; a directory stands for what is below it."""

    paths: tuple[str, ...] = ()
    ignored: bool = False
    """Also those that git ignores; one that is named by its own path is always meant."""


EVERYTHING = ChangeSelection()
"""All changes but the ignored ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """Which changes are to reach the repo, and how."""

    selection: ChangeSelection = EVERYTHING
    on_conflict: OnConflict = "refuse"
    """``merge``: three-way, as git does it; ``theirs``: the agent's; ``ours``: the repo's stays as it is."""
    dry_run: bool = False
    branch: str | None = None
    """Make a commit on this new branch instead, without touching the work tree."""
    message: str | None = None
    """Of that commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    """What became of one path (or would, in a dry run)."""

    path: str
    change: Literal["added", "modified", "deleted"]
    outcome: Literal["applied", "merged", "same", "kept", "conflict", "skipped"]
    """``same``: the repo has it already.  ``kept``: the repo's was kept (``ours``).  ``skipped``: nothing that can be
    applied (a pipe, a device)."""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What an apply did: all of it or, with ``applied`` false, nothing (a dry run, nothing to commit on a branch)."""

    applied: bool
    files: tuple[FileOutcome, ...]
    branch: str | None = None
    commit: str | None = None


class ChangeService(Protocol):
    """What can be done with the changes of subagents.  ``user_id`` None means: may see everybody's (admin).

    ``actor``: who does it, for the audit log.  Raises NotFoundError, also for what belongs to somebody else.
    """

    async def changes(
        self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING
    ) -> list[FileChange]:
        """What the subagent's workspace has changed against the repo, the ignored files included and marked."""
        ...

    async def patch(self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The same in git's patch format."""
        ...

    async def commits(self, subagent_id: str, *, user_id: str | None) -> list[CommitInfo]:
        """The commits that the agent made, newest first."""
        ...

    async def commits_file(self, subagent_id: str, *, user_id: str | None, form: CommitsForm) -> bytes:
        """The same as a git bundle or as a series of patches for ``git am``.  NotFoundError when there are none."""
        ...

    async def apply(
        self, subagent_id: str, request: ApplyRequest, *, user_id: str | None, actor: str = SERVICE
    ) -> ApplyResult:
        """Bring changes into the repo.  Raises ConflictError (a run is not finished; conflicts, in ``details``:
        ``files``), InvalidRequestError (no repo, a wrong branch name)."""
        ...

    async def discard(
        self, subagent_id: str, paths: tuple[str, ...], *, user_id: str | None, actor: str = SERVICE
    ) -> list[str]:
        """Drop these changes (none named: all); the paths that were changed.  Raises as ``apply`` does."""
        ...

    async def changes_of_run(self, run_id: str, *, user_id: str | None) -> dict[str, str]:
        """By path what this run did: ``changed``, ``deleted`` or ``restored``.  Raises NotFoundError."""
        ...

    async def rollback(self, subagent_id: str, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Take the workspace back to the end of a run.  Raises NotFoundError, ConflictError."""
        ...
