"""The ``RunService``: checks what callers ask, keeps users apart, and hands the rest to the supervisor."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal

from orchestrator.config.models import Config, Paths
from orchestrator.contract.adapter import BackendInfo
from orchestrator.contract.audit import SERVICE, Audit
from orchestrator.contract.runs import (
    GcRequest,
    GcResult,
    RunFilter,
    RunRecord,
    RunRequest,
    SubagentRecord,
    WorkspaceMode,
)
from orchestrator.contract.sandbox import Runtime
from orchestrator.contract.types import AuthStatus, ResourceLimits
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from orchestrator.events import EventRecord, Status
from orchestrator.runs.backends import Backends
from orchestrator.runs.launch.egress import added_rule, resolve_egress
from orchestrator.runs.limits.resolve import check_kept, resolve_limits
from orchestrator.runs.retention import Retention
from orchestrator.runs.storage.store import Store, StoredRun, StoredSubagent
from orchestrator.runs.stream.journal import Entry, Journal
from orchestrator.runs.supervisor import Supervisor
from orchestrator.system.times import now

MAX_ADDED: Final = 64
"""Hosts that can be allowed for one run while it runs."""
_LOCAL_USER: Final = "local"


class Runs:
    """See ``orchestrator.contract.runs.RunService`` for what each method promises."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        store: Store,
        journal: Journal,
        runtime: Runtime,
        workspaces: Workspaces,
        audit: Audit,
        supervisor: Supervisor,
        backends: Backends,
        retention: Retention,
    ) -> None:
        self._config = config
        self._paths = paths
        self._store = store
        self._journal = journal
        self._runtime = runtime
        self._workspaces = workspaces
        self._audit = audit
        self._supervisor = supervisor
        self._backends = backends
        self._retention = retention

    async def submit(self, request: RunRequest) -> RunRecord:
        """Accept a run.  A caller that goes away meanwhile leaves a run that is whole, and can be cancelled."""
        async with AsyncExitStack() as reserved:
            await reserved.enter_async_context(self._supervisor.place())
            new = await self._new_run(request)
            accepting = self._accept(request, new, reserved.pop_all())
        return await self._supervisor.unbroken(accepting, name=f"accept {new.record.run_id[:8]}")

    async def _accept(self, request: RunRequest, new: StoredRun, reserved: AsyncExitStack) -> RunRecord:
        """Store it and put it into the queue: between the two nobody would end it before the next start."""
        async with reserved:
            stored = await self._store_and_enqueue(request, new)
        return self._placed(stored.record)

    async def _store_and_enqueue(self, request: RunRequest, new: StoredRun) -> StoredRun:
        record = new.record
        async with AsyncExitStack() as stack:
            if request.subagent_id is not None:  # else whoever found it idle would not notice that it is so no more
                await stack.enter_async_context(self._workspaces.exclusive(request.subagent_id))
            stored = await self._store.insert_run(
                new,
                new_subagent=request.subagent_id is None,
                idempotency_key=request.idempotency_key,
                request_sha256=_fingerprint(request),
            )
        if stored.record.run_id == record.run_id:
            await self._audit.note(
                "run.submitted",
                actor=request.actor,
                user_id=record.user_id,
                run_id=record.run_id,
                backend=record.backend,
                subagent_id=record.subagent_id,
                tier=record.tier,
                workspace=record.workspace,
                repo=record.repo,
            )
            await self._supervisor.enqueue(record)
            stored = await self._store.run(record.run_id)  # the answer is about now: it may be starting
        return stored

    async def _new_run(self, request: RunRequest) -> StoredRun:
        adapter = self._backends.adapter(request.backend)
        if not request.query.strip():
            raise InvalidRequestError("the query is empty; say what the agent should do")
        repo, source = self._repo(request)
        workspace = request.workspace or self._config.external_agent.backends[request.backend].workspace
        if request.subagent_id is not None:
            before = await self._store.subagent(request.subagent_id, user_id=request.user_id)
            source, repo, workspace = _continued(before, request, source)
        tier = self._tier(request)
        model = request.model or self._config.external_agent.backends[request.backend].model
        if model is not None:
            adapter.model_argv(model)  # raises what is wrong with it before the run is accepted
        record = RunRecord(
            run_id=uuid.uuid4().hex,
            subagent_id=request.subagent_id or uuid.uuid4().hex,
            sandbox_id=None,
            user_id=request.user_id,
            backend=request.backend,
            model=model,
            query=request.query,
            state="queued",
            outcome=None,
            tier=tier,
            repo=repo,
            workspace=workspace,
            limits=self._limits(request),
            egress=resolve_egress(self._config, adapter, tier=tier, asked=request.egress),
            enforcement={},
            usage={},
            final_text=None,
            error=None,
            exit_code=None,
            cli_version=None,
            credential_source=None,
            image_id=None,
            metadata=request.metadata,
            queue_position=None,
            last_seq=0,
            created_at=now(),
            started_at=None,
            finished_at=None,
        )
        return StoredRun(record=record, source_path=source, traceparent=request.traceparent)

    def _limits(self, request: RunRequest) -> ResourceLimits:
        limits = resolve_limits(self._config, request.backend, request.limits, privileged=request.privileged)
        if self._config.podman.require_cgroup_limits:
            check_kept(limits, self._runtime.enforcement)
        return limits

    def _repo(self, request: RunRequest) -> tuple[str | None, Path | None]:
        if request.workspace == "direct" and not request.privileged:
            raise ForbiddenError("workspace mode `direct` edits the repo in place; only an admin may ask for it")
        if request.repo_path is not None:
            return str(request.repo_path), request.repo_path
        if request.repo is None:
            return None, None
        if (path := self._config.repos.get(request.repo)) is None:
            known = ", ".join(sorted(self._config.repos)) or "none"
            raise NotFoundError(f"there is no repo {request.repo!r} in the configuration; known: {known}")
        return request.repo, path

    def _tier(self, request: RunRequest) -> Literal[0, 1]:
        default = self._config.external_agent.default_sandbox_tier
        tier = default if request.tier is None else request.tier
        if tier < default and not request.privileged:
            raise ForbiddenError(f"the configured sandbox tier is {default}; only an admin may lower it")
        return tier

    async def get(self, run_id: str, *, user_id: str | None) -> RunRecord:
        """One run."""
        return self._placed((await self._store.run(run_id, user_id=user_id)).record)

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page of runs."""
        runs = await self._store.list_runs(wanted)
        return [self._placed(run) for run in runs]

    async def cancel(self, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> RunRecord:
        """Ask for the end."""
        run = await self._store.run(run_id, user_id=user_id)
        record = run.record
        if record.state != "finished":
            if not run.cancel_requested:
                await self._audit.note(
                    "run.cancel", actor=actor, user_id=record.user_id, run_id=run_id, backend=record.backend
                )
            await self._supervisor.cancel(record)
            record = (await self._store.run(run_id)).record
        return self._placed(record)

    async def allow_egress(
        self, run_id: str, *, host: str, port: int | None, user_id: str | None, privileged: bool, actor: str
    ) -> RunRecord:
        """One more host."""
        record = (await self._store.run(run_id, user_id=user_id)).record
        rule = added_rule(self._config, host, port, privileged=privileged)
        if record.egress is None:
            raise ConflictError(f"run {run_id} does not use the egress proxy: it is in tier {record.tier}")
        await self._audit.record(
            "egress.host_added",
            actor=actor,
            user_id=record.user_id,
            backend=record.backend,
            run_id=run_id,
            host=str(rule),
        )
        if await self._store.add_egress(run_id, str(rule), at_most=MAX_ADDED):
            status = Status(phase="egress_allowed", info={"host": rule.host, "port": rule.port})
            await self._journal.append(run_id, [Entry(now(), "orchestrator", status)])
        await self._supervisor.egress_changed(run_id)
        return self._placed((await self._store.run(run_id)).record)

    async def events(
        self, run_id: str, *, user_id: str | None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[EventRecord]:
        """Journalled events, and those to come."""
        await self._store.run(run_id, user_id=user_id)
        async with aclosing(self._journal.follow(run_id, after=after, follow=follow)) as records:
            async for record in records:
                yield record

    async def wait(self, run_id: str, *, user_id: str | None, timeout: float | None) -> RunRecord:
        """The run once it is finished."""
        run = await self._journal.until(
            run_id,
            timeout,
            lambda: self._store.run(run_id, user_id=user_id),
            lambda run: run.record.state == "finished",
        )
        return self._placed(run.record)

    async def log_path(self, run_id: str, *, user_id: str | None) -> Path:
        """The run's raw log."""
        await self._store.run(run_id, user_id=user_id)
        path = self._paths.log_path(run_id)
        if not await asyncio.to_thread(path.exists):
            raise NotFoundError(f"run {run_id} has no log: its sandbox was never started")
        return path

    async def list_subagents(self, *, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
        """Subagents, last used first."""
        return await self._store.subagents(user_id=user_id, prefix=prefix)

    async def get_subagent(self, subagent_id: str, *, user_id: str | None) -> SubagentRecord:
        """One subagent."""
        return (await self._store.subagent(subagent_id, user_id=user_id)).record

    async def retitle_subagent(self, subagent_id: str, title: str, *, user_id: str | None) -> SubagentRecord:
        """Give it another title."""
        return await self._store.retitle_subagent(subagent_id, title, user_id=user_id)

    async def delete_subagent(self, subagent_id: str, *, user_id: str | None, actor: str = SERVICE) -> None:
        """Remove a subagent with everything that belongs to it."""
        await self._retention.delete_subagent(subagent_id, user_id=user_id, actor=actor)

    async def gc(self, request: GcRequest, *, user_id: str | None, actor: str = SERVICE) -> GcResult:
        """Make room."""
        if user_id is not None:
            raise ForbiddenError("only an admin or the local owner may remove what is old")
        return await self._retention.collect(request, actor=actor)

    async def backends(self, *, user_id: str | None) -> list[BackendInfo]:
        """The enabled backends."""
        return await self._backends.describe(user_id=user_id or _LOCAL_USER)

    async def probe(self, backend: str, *, user_id: str) -> AuthStatus:
        """Whether the backend's CLI could log in as this user."""
        return await self._backends.probe(backend, user_id=user_id)

    def readiness(self) -> Mapping[str, Any]:
        """Whether runs are taken, and how many there are."""
        return {
            "ready": self._supervisor.accepting,
            "enforcement": dict(self._runtime.enforcement),
            **self._supervisor.counts(),
        }

    def _placed(self, record: RunRecord) -> RunRecord:
        """The record with its place in the queue, which is in no database."""
        return replace(record, queue_position=self._supervisor.position(record.run_id))


def _continued(
    before: StoredSubagent, request: RunRequest, source: Path | None
) -> tuple[Path | None, str | None, WorkspaceMode]:
    """Where a following run works: where its subagent has always worked."""
    record = before.record
    if record.backend != request.backend:
        raise InvalidRequestError(
            f"subagent {record.subagent_id} belongs to {record.backend}, not to {request.backend}"
        )
    if source is not None and source != before.source_path:
        raise InvalidRequestError(
            f"subagent {record.subagent_id} works on {record.repo or 'an empty workspace'}; leave the repo out, or "
            "start a new subagent for another one"
        )
    if request.workspace not in {None, record.workspace}:
        raise InvalidRequestError(f"the workspace mode of this subagent is {record.workspace} and stays so")
    return before.source_path, record.repo, record.workspace


def _fingerprint(request: RunRequest) -> str:
    """What must be the same for an idempotency key to mean the same request."""
    body = asdict(replace(request, idempotency_key=None, metadata=dict(request.metadata)))
    del body["actor"], body["traceparent"]  # they may differ: it is the same run
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()
