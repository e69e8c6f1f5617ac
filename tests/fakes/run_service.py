"""A RunService and ChangeService in memory, steered by the test: it emits the events, it ends the runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.contract.adapter import BackendInfo, Capabilities
from orchestrator.contract.changes import (
    EVERYTHING,
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
    FileOutcome,
)
from orchestrator.contract.runs import GcItem, GcRequest, GcResult, RunFilter, RunRecord, RunRequest, SubagentRecord
from orchestrator.contract.types import AuthStatus, ResourceLimits
from orchestrator.errors import ConflictError, ForbiddenError, NotFoundError, UnknownBackendError
from orchestrator.events import AgentEvent, Completed, Error, EventRecord, Source, Tokens

NOW = "2026-01-02T03:04:05.678Z"


class FakeRunService:
    """Keeps what it was asked (``requests``), and does what it is asked to do (``emit``, ``finish``, ``failure``)."""

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []
        self.runs: dict[str, RunRecord] = {}
        self.subagents: dict[str, SubagentRecord] = {}
        self.journal: dict[str, list[EventRecord]] = {}
        self.changes_of: dict[str, list[FileChange]] = {}
        self.patch_of: dict[str, bytes] = {}
        self.commits_of: dict[str, list[CommitInfo]] = {}
        self.rollbacks: list[tuple[str, str]] = []
        self.gcs: list[GcRequest] = []
        self.applies: list[ApplyRequest] = []
        self.outcomes: tuple[FileOutcome, ...] = ()
        self.selections: list[ChangeSelection] = []
        self.logs: dict[str, Path] = {}
        self.keys: dict[tuple[str, str], tuple[RunRequest, str]] = {}
        self.probes: dict[str, AuthStatus] = {}
        self.probed: list[tuple[str, str]] = []
        self.ready: dict[str, Any] = {"ready": True, "queued": 0, "running": 0}
        self.on_submit: Callable[[RunRecord], None] = lambda _: None
        """Called with every new run, for instance to play a whole script."""
        self.allowed: list[tuple[str, str, int | None, bool, str]] = []
        self.actors: list[tuple[str, str]] = []
        """Who did what."""
        self.failure: Exception | None = None
        """Raised by the next call of anything."""
        self.break_after: int | None = None
        """The reader of events crashes behind this seq."""
        self.readers = 0
        self.waiters = 0
        self._changed = asyncio.Event()

    # --- the test's side -------------------------------------------------------------------------------------------

    def add_run(self, *, user_id: str = "alice", backend: str = "claude-code", **members: Any) -> RunRecord:
        """A run that nobody has submitted."""
        number = len(self.journal) + 1
        record = _new_run(
            RunRequest(backend=backend, query="q", user_id=user_id), f"run-{number}", f"sub-{number}", number
        )
        record = replace(record, **members)
        self._keep(record)
        return record

    def emit(self, run_id: str, *events: AgentEvent, source: Source = "agent") -> None:
        """Journal ``events``; a terminal one ends the run."""
        record = self.runs[run_id]
        for event in events:
            seq = len(self.journal[run_id]) + 1
            self.journal[run_id].append(
                EventRecord(
                    seq=seq,
                    ts=NOW,
                    run_id=run_id,
                    subagent_id=record.subagent_id,
                    backend=record.backend,
                    kind=event.kind,
                    source=source,
                    parent_tool_call_id=event.parent_tool_call_id,
                    data=event.data(),
                )
            )
            record = self.runs[run_id] = _after(replace(record, last_seq=seq), event)
        self._wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of this service (``lambda: fake.readers == 1``)."""
        async with asyncio.timeout(10):
            await self._until(condition)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep(self, record: RunRecord) -> None:
        self.runs[record.run_id] = record
        self.journal.setdefault(record.run_id, [])
        subagent = self.subagents.get(record.subagent_id) or SubagentRecord(
            subagent_id=record.subagent_id,
            user_id=record.user_id,
            backend=record.backend,
            backend_session_id=None,
            title=record.query,
            repo=record.repo,
            workspace=record.workspace,
            created_at=NOW,
            last_used_at=NOW,
            run_ids=(),
            busy=False,
        )
        self.subagents[record.subagent_id] = replace(subagent, run_ids=(*subagent.run_ids, record.run_id))

    def _fail(self) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    # --- RunService ------------------------------------------------------------------------------------------------

    async def submit(self, request: RunRequest) -> RunRecord:
        """Keep the request; the same idempotency key with another request is a conflict."""
        self._fail()
        if request.backend not in {info.name for info in BACKENDS}:
            raise UnknownBackendError("no such backend")
        if request.idempotency_key is not None:
            known = self.keys.get((request.user_id, request.idempotency_key))
            if known is not None:
                if known[0] != request:
                    raise ConflictError("this idempotency key was used for another request")
                return self.runs[known[1]]
        if request.subagent_id is not None:
            await self.get_subagent(request.subagent_id, user_id=request.user_id)
        self.requests.append(request)
        number = len(self.journal) + 1
        record = _new_run(request, f"run-{number}", request.subagent_id or f"sub-{number}", number)
        self._keep(record)
        if request.idempotency_key is not None:
            self.keys[request.user_id, request.idempotency_key] = (request, record.run_id)
        self.on_submit(record)
        return self.runs[record.run_id]

    async def get(self, run_id: str, *, user_id: str | None) -> RunRecord:
        """One run."""
        self._fail()
        record = self.runs.get(run_id)
        if record is None or (user_id is not None and record.user_id != user_id):
            raise NotFoundError("there is no such run")
        return record

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page of runs."""
        self._fail()
        found = [
            run
            for run in reversed(self.runs.values())
            if (wanted.user_id is None or run.user_id == wanted.user_id)
            and (wanted.backend is None or run.backend == wanted.backend)
            and (wanted.state is None or run.state == wanted.state)
            and (wanted.subagent_id is None or run.subagent_id == wanted.subagent_id)
            and (wanted.outcome is None or run.outcome == wanted.outcome)
            and (wanted.since or "") <= run.created_at < (wanted.until or "9")
            and run.run_id.startswith(wanted.prefix or "")
        ]
        if wanted.before is not None:
            ids = [run.run_id for run in found]
            found = found[ids.index(wanted.before) + 1 :] if wanted.before in ids else []
        return found[: wanted.limit]

    async def cancel(self, run_id: str, *, user_id: str | None, actor: str = "service") -> RunRecord:
        """Ends the run at once."""
        self.actors.append(("cancel", actor))
        record = await self.get(run_id, user_id=user_id)
        if record.state != "finished":
            self.emit(run_id, Error(reason="cancelled", message="cancelled"), source="orchestrator")
        return self.runs[run_id]

    async def allow_egress(
        self, run_id: str, *, host: str, port: int | None, user_id: str | None, privileged: bool, actor: str
    ) -> RunRecord:
        """Adds the host to those of the run, and to ``allowed``."""
        record = await self.get(run_id, user_id=user_id)
        if record.egress is None:
            raise ConflictError("the run does not use the egress proxy")
        self.allowed.append((run_id, host, port, privileged, actor))
        rule = host if port is None else f"{host}:{port}"
        self.runs[run_id] = replace(record, egress=(*record.egress, rule))
        return self.runs[run_id]

    async def events(
        self, run_id: str, *, user_id: str | None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[EventRecord]:
        """The journal."""
        record = await self.get(run_id, user_id=user_id)
        self.readers += 1
        self._wake()
        try:
            position = after
            while True:
                for event in self.journal[run_id][position:]:
                    if self.break_after is not None and event.seq > self.break_after:
                        raise RuntimeError("the journal is broken")
                    position = event.seq
                    yield event
                record = self.runs[run_id]
                if record.state == "finished" or not follow:
                    return
                await self._until(lambda: len(self.journal[run_id]) > position)  # noqa: B023 - awaited in place
        finally:
            self.readers -= 1
            self._wake()

    async def wait(self, run_id: str, *, user_id: str | None, timeout: float | None) -> RunRecord:
        """The run once it has finished."""
        await self.get(run_id, user_id=user_id)
        self.waiters += 1
        self._wake()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: self.runs[run_id].state == "finished")
        except TimeoutError:
            return self.runs[run_id]
        finally:
            self.waiters -= 1
            self._wake()
        return self.runs[run_id]

    async def log_path(self, run_id: str, *, user_id: str | None) -> Path:
        """What the test has put into ``logs``."""
        await self.get(run_id, user_id=user_id)
        if run_id not in self.logs:
            raise NotFoundError("the run has no log yet")
        return self.logs[run_id]

    async def list_subagents(self, *, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
        """All conversations."""
        self._fail()
        return [
            s
            for s in self.subagents.values()
            if (user_id is None or s.user_id == user_id) and s.subagent_id.startswith(prefix or "")
        ]

    async def get_subagent(self, subagent_id: str, *, user_id: str | None) -> SubagentRecord:
        """One conversation."""
        self._fail()
        record = self.subagents.get(subagent_id)
        if record is None or (user_id is not None and record.user_id != user_id):
            raise NotFoundError("there is no such subagent")
        return record

    async def retitle_subagent(self, subagent_id: str, title: str, *, user_id: str | None) -> SubagentRecord:
        record = replace(await self.get_subagent(subagent_id, user_id=user_id), title=title)
        self.subagents[subagent_id] = record
        return record

    async def delete_subagent(self, subagent_id: str, *, user_id: str | None, actor: str = "service") -> None:
        """Remove it with its runs."""
        self.actors.append(("delete_subagent", actor))
        record = await self.get_subagent(subagent_id, user_id=user_id)
        if record.busy:
            raise ConflictError("one of its runs has not finished")
        del self.subagents[subagent_id]
        for run_id in record.run_ids:
            del self.runs[run_id]
        self.keys = {key: made for key, made in self.keys.items() if made[1] in self.runs}

    async def changes(
        self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING
    ) -> list[FileChange]:
        """What the test has put into ``changes_of``."""
        await self.get_subagent(subagent_id, user_id=user_id)
        self.selections.append(selection)
        return self.changes_of.get(subagent_id, [])

    async def patch(self, subagent_id: str, *, user_id: str | None, selection: ChangeSelection = EVERYTHING) -> bytes:
        """What the test has put into ``patch_of``."""
        await self.get_subagent(subagent_id, user_id=user_id)
        self.selections.append(selection)
        return self.patch_of.get(subagent_id, b"")

    async def commits(self, subagent_id: str, *, user_id: str | None) -> list[CommitInfo]:
        """What the test has put into ``commits_of``."""
        await self.get_subagent(subagent_id, user_id=user_id)
        return self.commits_of.get(subagent_id, [])

    async def commits_file(self, subagent_id: str, *, user_id: str | None, form: CommitsForm) -> bytes:
        """The form's name, when there are commits."""
        if not await self.commits(subagent_id, user_id=user_id):
            raise NotFoundError("no commits")
        return form.encode()

    async def apply(
        self, subagent_id: str, request: ApplyRequest, *, user_id: str | None, actor: str = "service"
    ) -> ApplyResult:
        """What the test has put into ``outcomes``; a conflict among them refuses it all."""
        self.actors.append(("apply", actor))
        record = await self.get_subagent(subagent_id, user_id=user_id)
        if record.busy:
            raise ConflictError("one of its runs has not finished")
        self.applies.append(request)
        conflicts = [asdict(one) for one in self.outcomes if one.outcome == "conflict"]
        if conflicts and not request.dry_run:
            raise ConflictError("nothing was applied", files=conflicts)
        return ApplyResult(applied=not request.dry_run, files=self.outcomes, branch=request.branch)

    async def discard(
        self, subagent_id: str, paths: tuple[str, ...], *, user_id: str | None, actor: str = "service"
    ) -> list[str]:
        """All that was named."""
        self.actors.append(("discard", actor))
        record = await self.get_subagent(subagent_id, user_id=user_id)
        if record.busy:
            raise ConflictError("one of its runs has not finished")
        return list(paths) or ["everything"]

    async def changes_of_run(self, run_id: str, *, user_id: str | None) -> dict[str, str]:
        """One file of each sort."""
        await self.get(run_id, user_id=user_id)
        return {"a": "changed", "b": "deleted", "c": "restored"}

    async def rollback(self, subagent_id: str, run_id: str, *, user_id: str | None, actor: str = "service") -> None:
        """Keep what was asked."""
        self.actors.append(("rollback", actor))
        record = await self.get_subagent(subagent_id, user_id=user_id)
        if run_id not in record.run_ids:
            raise NotFoundError("no such run")
        self.rollbacks.append((subagent_id, run_id))

    async def gc(self, request: GcRequest, *, user_id: str | None, actor: str = "service") -> GcResult:
        """One conversation."""
        self.actors.append(("gc", actor))
        if user_id is not None:
            raise ForbiddenError("not yours")
        self.gcs.append(request)
        item = GcItem(kind="subagent", id="sub-1", bytes=5)
        return GcResult(removed=(item,), kept=(), bytes=5, dry_run=request.dry_run)

    async def backends(self, *, user_id: str | None) -> list[BackendInfo]:
        """Two of them."""
        self._fail()
        return list(BACKENDS)

    async def probe(self, backend: str, *, user_id: str) -> AuthStatus:
        """What the test has put into ``probes``."""
        self._fail()
        self.probed.append((backend, user_id))
        if backend not in self.probes:
            raise UnknownBackendError("no such backend")
        return self.probes[backend]

    def readiness(self) -> Mapping[str, Any]:
        """What the test has put into ``ready``."""
        return self.ready


BACKENDS = (
    BackendInfo(
        name="claude-code",
        tool_name="claude_code",
        image="sha256:abc",
        image_tag="podmentor/claude-code:1",
        cli_version="2.1.197",
        capabilities=Capabilities(deltas=True, resume=True),
        default_allowed_egress=["api.anthropic.com"],
        auth={"source": "technical_user", "authenticated": True},
    ),
    BackendInfo(
        name="codex",
        tool_name="codex",
        image=None,
        image_tag=None,
        cli_version=None,
        capabilities=Capabilities(),
        default_allowed_egress=["api.openai.com"],
    ),
)


def done(text: str = "All done.") -> Completed:
    """The end of a run that went well."""
    return Completed(
        final_text=text,
        tokens=Tokens(input=10, output=5, cache_read=3),
        duration_ms=1200,
        stop_reason="end_turn",
        cost_usd=0.01,
        turns=2,
    )


def _new_run(request: RunRequest, run_id: str, subagent_id: str, number: int) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        subagent_id=subagent_id,
        sandbox_id=None,
        user_id=request.user_id,
        backend=request.backend,
        model=request.model,
        query=request.query,
        state="queued",
        outcome=None,
        tier=request.tier or 0,
        repo=request.repo,
        workspace=request.workspace or "overlay",
        limits=ResourceLimits(),
        egress=request.egress,
        enforcement={},
        usage={},
        final_text=None,
        error=None,
        exit_code=None,
        cli_version=None,
        credential_source=None,
        image_id=None,
        metadata=request.metadata,
        queue_position=number,
        last_seq=0,
        created_at=NOW,
        started_at=None,
        finished_at=None,
    )


def _after(record: RunRecord, event: AgentEvent) -> RunRecord:
    if isinstance(event, Completed):
        usage = {"tokens": event.tokens.to_dict(), "cost_usd": event.cost_usd, "turns": event.turns}
        return replace(
            record, state="finished", outcome="completed", final_text=event.final_text, usage=usage, finished_at=NOW
        )
    if isinstance(event, Error):
        outcome: Any = "cancelled" if event.reason == "cancelled" else "failed"
        return replace(record, state="finished", outcome=outcome, error=event.data(), finished_at=NOW)
    return replace(record, state="running")
