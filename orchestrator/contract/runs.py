"""Runs and subagents as the API and the command see them, and the service that answers for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from orchestrator.contract.adapter import BackendInfo
from orchestrator.contract.audit import SERVICE
from orchestrator.contract.credentials import SourceName
from orchestrator.contract.types import AuthStatus, ResourceLimits
from orchestrator.events import EventRecord

RunState: TypeAlias = Literal["queued", "starting", "running", "finished"]
Outcome: TypeAlias = Literal["completed", "failed", "cancelled"]
WorkspaceMode: TypeAlias = Literal["overlay", "copy", "direct", "readonly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsRequest:
    """What a caller asks for; only an admin may ask for more than the configuration gives.  None: as configured."""

    memory_max_bytes: int | None = None
    wall_clock_seconds: float | None = None
    idle_seconds: float | None = None
    output_max_bytes: int | None = None
    pids_max: int | None = None
    cpus: float | None = None
    disk_max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One prompt to one backend.

    ``repo``: a name from the configuration.  ``repo_path``: an absolute path, accepted from the local owner only (the
    API checks that before it makes this record).  Neither: an empty workspace.  A following run of a subagent keeps
    the subagent's repo and may leave both out.
    """

    backend: str
    query: str
    user_id: str
    model: str | None = None
    """By the name that the provider has for it; None: as configured."""
    subagent_id: str | None = None
    repo: str | None = None
    repo_path: Path | None = None
    tier: Literal[0, 1] | None = None
    workspace: WorkspaceMode | None = None
    limits: LimitsRequest = field(default_factory=LimitsRequest)
    egress: tuple[str, ...] | None = None
    """Host patterns that are all this run may reach, each covered by the configured ones; None: those."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    privileged: bool = False
    """Asked by an admin or the local owner, who may widen what the configuration gives (tier, mode, limits)."""
    actor: str = SERVICE
    """Who asks, for the audit log; ``user_id`` is for whom."""
    traceparent: str | None = None
    """The W3C trace context of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run.  Times are RFC 3339 UTC."""

    run_id: str
    subagent_id: str
    sandbox_id: str | None
    user_id: str
    backend: str
    model: str | None
    """The model that was asked for, by the request or the configuration; null: the CLI's own choice."""
    query: str
    state: RunState
    outcome: Outcome | None
    tier: Literal[0, 1]
    repo: str | None
    workspace: WorkspaceMode
    limits: ResourceLimits
    egress: tuple[str, ...] | None
    """Host patterns that the run may reach, those allowed later included; null: the network is open (tier 0)."""
    enforcement: Mapping[str, str]
    """How each limit is kept on this machine, by the limit's name: ``cgroup``, ``watchdog``, ``rlimit``, ``watch``,
    ``clock``, ``log``, or ``none``: it is not.  Empty: the run has not been started."""
    usage: Mapping[str, Any]
    """tokens, cost_usd and turns as the CLI reports them; as measured: peak_memory_bytes, peak_disk_bytes, peak_pids,
    cpu_seconds, output_bytes, duration_seconds."""
    final_text: str | None
    error: Mapping[str, Any] | None
    """``data`` of the event that ended the run badly."""
    exit_code: int | None
    cli_version: str | None
    credential_source: SourceName | None
    """Whose credential the run uses; null: it has not been started."""
    image_id: str | None
    metadata: Mapping[str, Any]
    queue_position: int | None
    last_seq: int
    created_at: str
    started_at: str | None
    finished_at: str | None

    def envelope(self) -> str:
        """The documented tool result: one line of prefix, the final text untouched."""
        prefix = f"[Subagent ID: {self.subagent_id} - Use this ID to continue this conversation] "
        if self.outcome == "completed":
            return prefix + (self.final_text or "")
        error = self.error or {}
        return f"{prefix}Error ({error.get('reason', 'lost')}): {error.get('message', 'the run has not finished')}"


TITLE_CHARS: Final = 80
"""The longest title of a subagent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentRecord:
    """A conversation: the chain of runs that share a workspace, a home and the CLI's session."""

    subagent_id: str
    user_id: str
    backend: str
    backend_session_id: str | None
    """The CLI's own session id; None: it has not reported one."""
    title: str
    """The first line of its first prompt, cut, until somebody gives it another one; at most ``TITLE_CHARS``."""
    repo: str | None
    workspace: WorkspaceMode
    created_at: str
    last_used_at: str
    run_ids: tuple[str, ...]
    """Oldest first."""
    busy: bool
    """One of its runs has not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list, newest first.  ``user_id`` None: everybody's (admin)."""

    user_id: str | None
    backend: str | None = None
    state: RunState | None = None
    outcome: Outcome | None = None
    subagent_id: str | None = None
    since: str | None = None
    """RFC 3339 UTC with microseconds, as ``created_at`` has it: only runs accepted then or later."""
    until: str | None = None
    """Only runs accepted before."""
    limit: int = 50
    before: str | None = None
    """run_id of the last run of the page before."""
    prefix: str | None = None
    """Only runs whose id begins with this."""


class RunService(Protocol):
    """Everything that can be done with runs.  ``user_id`` None means: may see everybody's (admin).

    ``actor``: who does it, for the audit log.
    """

    async def submit(self, request: RunRequest) -> RunRecord:
        """Accept a run.  Raises InvalidRequestError, UnknownBackendError, NotFoundError (subagent, repo),
        ConflictError (idempotency key used for another request), QueueFullError, ShuttingDownError.
        The same idempotency key with the same request gives the run that it made."""
        ...

    async def get(self, run_id: str, *, user_id: str | None) -> RunRecord:
        """One run.  Raises NotFoundError, also for a run of somebody else."""
        ...

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page of runs."""
        ...

    async def cancel(self, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> RunRecord:
        """Ask for the end; idempotent; returns at once with the record as it is."""
        ...

    async def allow_egress(
        self, run_id: str, *, host: str, port: int | None, user_id: str | None, privileged: bool, actor: str
    ) -> RunRecord:
        """Allow one more host (no pattern) for the rest of the run; idempotent; the next attempt passes.

        ``port`` None: the default ports.  Raises NotFoundError,
        InvalidRequestError (no host name), ForbiddenError (an address, or any host where only admins may do this, from
        somebody who is not ``privileged``), ConflictError (finished, in tier 0, or too many hosts).
        """
        ...

    def events(
        self, run_id: str, *, user_id: str | None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[EventRecord]:
        """Journalled events from ``after`` (exclusive) on; with ``follow`` also those to come, until the terminal one.

        A reader that is slow costs nobody but itself.  NotFoundError is raised at the first step.
        """
        ...

    async def wait(self, run_id: str, *, user_id: str | None, timeout: float | None) -> RunRecord:
        """The run once it is finished, or as it is after ``timeout`` seconds."""
        ...

    async def log_path(self, run_id: str, *, user_id: str | None) -> Path:
        """The run's raw log (conmon's k8s-file format).  NotFoundError when it does not exist (yet)."""
        ...

    async def list_subagents(self, *, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
        """Subagents, last used first; with ``prefix`` only those whose id begins with it."""
        ...

    async def get_subagent(self, subagent_id: str, *, user_id: str | None) -> SubagentRecord:
        """One subagent.  Raises NotFoundError."""
        ...

    async def retitle_subagent(self, subagent_id: str, title: str, *, user_id: str | None) -> SubagentRecord:
        """Give a subagent another title.  Raises NotFoundError."""
        ...

    async def delete_subagent(self, subagent_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Remove a subagent with its home, workspace and runs.  Raises ConflictError while one of them runs."""
        ...

    async def gc(self, request: GcRequest, *, user_id: str | None, actor: str = SERVICE) -> GcResult:
        """Remove what is older than the retention.  Raises ForbiddenError unless the caller may see everybody's."""
        ...

    async def backends(self, *, user_id: str | None) -> list[BackendInfo]:
        """The enabled backends."""
        ...

    async def probe(self, backend: str, *, user_id: str) -> AuthStatus:
        """Whether the backend's CLI is there and could log in as this user; asks the CLI, in a container of its own.

        Raises UnknownBackendError, SandboxError, StorageError.  What comes back never holds a secret.
        """
        ...

    def readiness(self) -> Mapping[str, Any]:
        """{ready: bool, enforcement: how each limit is kept here, queued: int, running: int}."""
        ...


GcKind: TypeAlias = Literal["subagent", "log", "leftover"]
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
    """A subagent, the log of a run, or a directory that belongs to nothing."""

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
