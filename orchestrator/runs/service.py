"""The ``RunService``: checks what callers ask, keeps users apart, and hands the rest to the supervisor."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.contract.adapter import BackendInfo, BaseAdapter
from orchestrator.contract.audit import SERVICE
from orchestrator.contract.runs import RunFilter, RunRecord, RunRequest, SubagentRecord, WorkspaceMode
from orchestrator.contract.types import AuthStatus, ResourceLimits
from orchestrator.errors import (
    AuthRequiredError,
    ConflictError,
    ForbiddenError,
    ImageMissingError,
    InvalidRequestError,
    NotFoundError,
    UnknownBackendError,
)
from orchestrator.events import EventRecord, Status
from orchestrator.runs.auth_container import PLACEHOLDER, Aside
from orchestrator.runs.backends import describe
from orchestrator.runs.changes import Reviewing
from orchestrator.runs.clock import now
from orchestrator.runs.deps import Deps
from orchestrator.runs.launch.egress import added_rule, resolve_egress
from orchestrator.runs.launch.launch import env_of
from orchestrator.runs.limits.resolve import check_kept, resolve_limits
from orchestrator.runs.storage.store import NewRun, StoredRun
from orchestrator.runs.stream.journal import Entry
from orchestrator.runs.supervisor import Supervisor

MAX_ADDED = 64
"""Hosts that can be allowed for one run while it runs."""
_ID = re.compile(r"[0-9a-f]{32}")


class Runs(Reviewing):
    """See ``orchestrator.contract.runs.RunService`` for what each method promises."""

    def __init__(self, deps: Deps, supervisor: Supervisor) -> None:
        super().__init__(deps)
        self._supervisor = supervisor
        self._aside = Aside.of(deps.config, deps.paths, deps.runtime, deps.instance)

    async def submit(self, request: RunRequest) -> RunRecord:
        """Accept a run."""
        await self._supervisor.check_accepting()
        self._adapter(request.backend)
        new = await self._new_run(request)
        stored = await self._deps.store.insert_run(new)
        if stored.record.run_id == new.run_id:
            await self._deps.audit.note(
                "run.submitted",
                actor=request.actor,
                user_id=new.user_id,
                run_id=new.run_id,
                backend=new.backend,
                subagent_id=new.subagent_id,
                tier=new.tier,
                workspace=new.workspace,
                repo=new.repo,
            )
            await self._supervisor.enqueue(stored)
            stored = await self._deps.store.run(new.run_id)
        return self._seen(stored)

    async def _new_run(self, request: RunRequest) -> NewRun:
        config = self._deps.config
        if not request.query.strip():
            raise InvalidRequestError("the query is empty; say what the agent should do")
        repo, source = self._repo(request)
        workspace = request.workspace or config.external_agent.backends[request.backend].workspace
        if request.subagent_id is not None:
            before = await self.get_subagent(request.subagent_id, user_id=request.user_id)
            source, repo, workspace = await self._continued(before, request, source)
        tier = self._tier(request)
        return NewRun(
            run_id=uuid.uuid4().hex,
            subagent_id=request.subagent_id or uuid.uuid4().hex,
            new_subagent=request.subagent_id is None,
            user_id=request.user_id,
            backend=request.backend,
            query=request.query,
            tier=tier,
            repo=repo,
            source_path=source,
            workspace=workspace,
            limits=self._limits(request),
            egress=resolve_egress(config, self._deps.adapters[request.backend], tier=tier, asked=request.egress),
            metadata=request.metadata,
            idempotency_key=request.idempotency_key,
            request_sha256=_fingerprint(request),
            traceparent=request.traceparent,
        )

    def _limits(self, request: RunRequest) -> ResourceLimits:
        config = self._deps.config
        limits = resolve_limits(config, request.backend, request.limits, privileged=request.privileged)
        if config.podman.require_cgroup_limits:
            check_kept(limits, self._deps.runtime.enforcement)
        return limits

    def _repo(self, request: RunRequest) -> tuple[str | None, Path | None]:
        if request.workspace == "direct" and not request.privileged:
            raise ForbiddenError("workspace mode `direct` edits the repo in place; only an admin may ask for it")
        if request.repo_path is not None:
            return str(request.repo_path), request.repo_path
        if request.repo is None:
            return None, None
        if (path := self._deps.config.repos.get(request.repo)) is None:
            known = ", ".join(sorted(self._deps.config.repos)) or "none"
            raise NotFoundError(f"there is no repo {request.repo!r} in the configuration; known: {known}")
        return request.repo, path

    async def _continued(
        self, before: SubagentRecord, request: RunRequest, source: Path | None
    ) -> tuple[Path | None, str | None, WorkspaceMode]:
        """A following run works where the conversation has always worked."""
        if before.backend != request.backend:
            raise InvalidRequestError(
                f"subagent {before.subagent_id} belongs to {before.backend}, not to {request.backend}"
            )
        kept = await self._deps.store.source_of(before.subagent_id)
        if source is not None and source != kept:
            raise InvalidRequestError(
                f"subagent {before.subagent_id} works on {before.repo or 'an empty workspace'}; leave the repo out, or "
                "begin a new conversation for another one"
            )
        if request.workspace not in {None, before.workspace}:
            raise InvalidRequestError(f"the workspace mode of this subagent is {before.workspace} and stays so")
        return kept, before.repo, before.workspace

    def _tier(self, request: RunRequest) -> Literal[0, 1]:
        default = self._deps.config.external_agent.default_sandbox_tier
        tier = default if request.tier is None else request.tier
        if tier < default and not request.privileged:
            raise ForbiddenError(f"the configured sandbox tier is {default}; only an admin may lower it")
        return tier

    def _seen(self, run: StoredRun) -> RunRecord:
        return replace(run.record, queue_position=self._supervisor.position(run.record.run_id))

    async def _own(self, run_id: str, user_id: str | None) -> StoredRun:
        if _ID.fullmatch(run_id):
            run = await self._deps.store.run(run_id)
            if user_id is None or run.record.user_id == user_id:
                return run
        raise NotFoundError(f"there is no run {run_id}")

    async def get(self, run_id: str, *, user_id: str | None) -> RunRecord:
        """One run."""
        return self._seen(await self._own(run_id, user_id))

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page of runs."""
        runs = await self._deps.store.list_runs(wanted)
        return [replace(run, queue_position=self._supervisor.position(run.run_id)) for run in runs]

    async def cancel(self, run_id: str, *, user_id: str | None, actor: str = SERVICE) -> RunRecord:
        """Ask for the end."""
        run = await self._own(run_id, user_id)
        if run.record.state != "finished":
            if not run.cancel_requested:
                await self._deps.audit.note(
                    "run.cancel", actor=actor, user_id=run.record.user_id, run_id=run_id, backend=run.record.backend
                )
            await self._supervisor.cancel(run_id)
            run = await self._deps.store.run(run_id)
        return self._seen(run)

    async def allow_egress(
        self, run_id: str, *, host: str, port: int | None, user_id: str | None, privileged: bool, actor: str
    ) -> RunRecord:
        """One more host."""
        record = (await self._own(run_id, user_id)).record
        rule = added_rule(self._deps.config, host, port, privileged=privileged)
        if record.egress is None:
            raise ConflictError(f"run {run_id} does not use the egress proxy: it is in tier {record.tier}")
        await self._deps.audit.record(
            "egress.host_added",
            actor=actor,
            user_id=record.user_id,
            backend=record.backend,
            run_id=run_id,
            host=str(rule),
        )
        if await self._deps.store.add_egress(run_id, str(rule), at_most=MAX_ADDED):
            status = Status(phase="egress_allowed", info={"host": rule.host, "port": rule.port})
            await self._deps.journal.append(run_id, [Entry(now(), "orchestrator", status)])
        await self._supervisor.egress_changed(run_id)
        return self._seen(await self._deps.store.run(run_id))

    async def events(
        self, run_id: str, *, user_id: str | None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[EventRecord]:
        """Journalled events, and those to come."""
        await self._own(run_id, user_id)
        async with aclosing(self._deps.journal.follow(run_id, after=after, follow=follow)) as records:
            async for record in records:
                yield record

    async def wait(self, run_id: str, *, user_id: str | None, timeout: float | None) -> RunRecord:
        """The run once it is finished."""
        run = await self._deps.journal.until(
            run_id, timeout, lambda: self._own(run_id, user_id), lambda run: run.record.state == "finished"
        )
        return self._seen(run)

    async def log_path(self, run_id: str, *, user_id: str | None) -> Path:
        """The run's raw log."""
        await self._own(run_id, user_id)
        path = self._deps.paths.log_path(run_id)
        if not await asyncio.to_thread(path.exists):
            raise NotFoundError(f"run {run_id} has no log: its sandbox was never started")
        return path

    async def list_subagents(self, *, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
        """Subagents, last used first."""
        return await self._deps.store.subagents(user_id=user_id, prefix=prefix)

    async def get_subagent(self, subagent_id: str, *, user_id: str | None) -> SubagentRecord:
        """One conversation."""
        if _ID.fullmatch(subagent_id):
            for found in await self._deps.store.subagents(user_id=user_id, subagent_id=subagent_id):
                return found
        raise NotFoundError(f"there is no subagent {subagent_id}")

    async def backends(self, *, user_id: str | None) -> list[BackendInfo]:
        """The enabled backends."""
        return [
            await describe(adapter, self._deps, user_id=user_id or "local") for adapter in self._deps.adapters.values()
        ]

    async def probe(self, backend: str, *, user_id: str) -> AuthStatus:
        """Ask the CLI itself; where it has no answer, look at what it would be given."""
        adapter = self._adapter(backend)
        if adapter.transport == "subprocess":
            try:
                await self._deps.runtime.image(adapter.image or adapter.name)
            except ImageMissingError as error:
                return AuthStatus(installed=False, authenticated=False, error=error.message)
        try:
            credential = await self._deps.credentials.resolve(user_id=user_id, backend=backend)
        except AuthRequiredError as error:
            return AuthStatus(installed=True, authenticated=False, error=error.message)
        status = await self._aside.ask(adapter, credential) if adapter.transport == "subprocess" else None
        if status is not None and (credential.api_key is None or status.authenticated or not status.installed):
            return status
        # Some CLIs tell of their stored logins only; with a key it is the environment that counts.
        env = env_of(adapter, credential, PLACEHOLDER, gateway=credential.api_key is not None)
        if credential.home is not None:
            env["HOME"] = str(credential.home)  # the adapter looks from here, not from inside
        return await adapter.probe_auth(env)

    def _adapter(self, backend: str) -> BaseAdapter:
        if (adapter := self._deps.adapters.get(backend)) is not None:
            return adapter
        known = ", ".join(sorted(self._deps.adapters)) or "none"
        raise UnknownBackendError(f"there is no backend {backend!r}; enabled: {known}")

    def readiness(self) -> Mapping[str, Any]:
        """Whether runs are taken, and how many there are."""
        return {
            "ready": self._supervisor.accepting,
            "memory_enforcement": "cgroup" if self._deps.runtime.memory_by_cgroup else "watchdog",
            **self._supervisor.counts(),
        }


def _fingerprint(request: RunRequest) -> str:
    """What must be the same for an idempotency key to mean the same request."""
    body = asdict(replace(request, idempotency_key=None, metadata=dict(request.metadata)))
    del body["actor"], body["traceparent"]  # keys that were used before there were these must go on to count
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()
