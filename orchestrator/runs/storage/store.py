"""Runs, subagents and sandboxes in the database, and the records that their rows become."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from orchestrator.contract.adapter import Resumed
from orchestrator.contract.runs import TITLE_CHARS, RunFilter, RunRecord, SubagentRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import ConflictError, NotFoundError
from orchestrator.events import Tokens
from orchestrator.runs.storage.database import Database, to_json
from orchestrator.system.times import now

_ID: Final = re.compile(r"[0-9a-f]{32}")
_RUN: Final = (
    "SELECT runs.*, subagents.repo, subagents.source_path, subagents.workspace, subagents.backend_session_id,"
    " sandboxes.image_id, sandboxes.container_id, {earlier} AS earlier FROM runs JOIN subagents USING (subagent_id)"
    " LEFT JOIN sandboxes USING (sandbox_id)"
)
_LISTED: Final = _RUN.format(earlier="'[]'")
_DRIVEN: Final = _RUN.format(
    earlier="(SELECT json_group_array(json_extract(before.usage, '$.tokens')) FROM runs AS before"
    " WHERE before.subagent_id = runs.subagent_id AND before.number < runs.number)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run with what nobody outside ``runs`` needs to know."""

    record: RunRecord
    source_path: Path | None
    backend_session_id: str | None = None
    container_id: str | None = None
    token_sha256: str | None = None
    """Of the token that the gateway exchanges for the key."""
    traceparent: str | None = None
    """The trace context of the request, as it came."""
    cancel_requested: bool = False
    earlier: Tokens = field(default_factory=lambda: Tokens(input=0, output=0))
    """What the subagent's earlier runs have used together."""

    @property
    def resumed(self) -> Resumed | None:
        """The CLI's own session that it continues; None: it begins a new one."""
        if self.backend_session_id is None:
            return None
        return Resumed(session_id=self.backend_session_id, tokens=self.earlier)


class StoredSubagent(NamedTuple):
    """A subagent, and the directory that it works on (None: an empty one of its own)."""

    record: SubagentRecord
    source_path: Path | None


class Store:
    """Rows in, records out."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert_run(
        self, run: StoredRun, *, new_subagent: bool, idempotency_key: str | None, request_sha256: str
    ) -> StoredRun:
        """Store a new run, and its subagent when that is new; the run as it is stored.

        With an idempotency key that was used: the run that it made.  Raises ConflictError when that was another
        request, NotFoundError when the subagent was removed meanwhile.
        """
        record = run.record

        def work(connection: sqlite3.Connection) -> StoredRun:
            if idempotency_key is not None:
                earlier = connection.execute(
                    "SELECT run_id, request_sha256 FROM runs WHERE user_id = ? AND idempotency_key = ?",
                    (record.user_id, idempotency_key),
                ).fetchone()
                if earlier is not None:
                    if earlier["request_sha256"] != request_sha256:
                        raise ConflictError("this Idempotency-Key was used for another request; take a new one")
                    return _read_run(connection, earlier["run_id"], None)
            if new_subagent:
                connection.execute(
                    "INSERT INTO subagents (subagent_id, user_id, backend, repo, source_path, workspace, created_at,"
                    " last_used_at, title) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)",
                    (
                        record.subagent_id,
                        record.user_id,
                        record.backend,
                        record.repo,
                        None if run.source_path is None else str(run.source_path),
                        record.workspace,
                        record.created_at,
                        title_of(record.query),
                    ),
                )
            elif not connection.execute(
                "UPDATE subagents SET last_used_at = ? WHERE subagent_id = ?", (record.created_at, record.subagent_id)
            ).rowcount:
                raise NotFoundError(f"there is no subagent {record.subagent_id}")
            connection.execute(
                "INSERT INTO runs (run_id, subagent_id, user_id, backend, model, query, state, tier, limits, egress,"
                " metadata, created_at, idempotency_key, request_sha256, traceparent)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.run_id,
                    record.subagent_id,
                    record.user_id,
                    record.backend,
                    record.model,
                    record.query,
                    record.state,
                    record.tier,
                    to_json(asdict(record.limits)),
                    None if record.egress is None else to_json(record.egress),
                    to_json(dict(record.metadata)),
                    record.created_at,
                    idempotency_key,
                    request_sha256,
                    run.traceparent,
                ),
            )
            return run

        return await self._database.call(work, durable=True)

    async def run(self, run_id: str, *, user_id: str | None = None) -> StoredRun:
        """One run.  Raises NotFoundError, also for one of somebody other than ``user_id`` (None: anybody's)."""
        return await self._database.call(lambda connection: _read_run(connection, run_id, user_id))

    async def unfinished(self) -> list[StoredRun]:
        """All runs that have not ended, in the order in which they were accepted."""
        return await self._database.call(
            lambda connection: [
                _stored_run(row) for row in connection.execute(f"{_DRIVEN} WHERE state != 'finished' ORDER BY number")
            ]
        )

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page, newest first."""
        conditions, values = ["1"], []
        for column, value in (
            ("runs.user_id", wanted.user_id),
            ("runs.backend", wanted.backend),
            ("state", wanted.state),
            ("outcome", wanted.outcome),
            ("runs.subagent_id", wanted.subagent_id),
        ):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        for condition, value in (("runs.created_at >= ?", wanted.since), ("runs.created_at < ?", wanted.until)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        if wanted.before is not None:
            conditions.append("number < (SELECT number FROM runs WHERE run_id = ?)")
            values.append(wanted.before)
        if wanted.prefix is not None:
            conditions.append("substr(run_id, 1, length(?)) = ?")  # not LIKE: "_" in an id is no wildcard
            values += [wanted.prefix, wanted.prefix]
        query = f"{_LISTED} WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return await self._database.call(
            lambda connection: [_stored_run(row).record for row in connection.execute(query, (*values, wanted.limit))]
        )

    async def update_run(self, run_id: str, **columns: object) -> None:
        """Change columns of a run."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE runs SET {assignments} WHERE run_id = ?"  # noqa: S608 -- column names are ours
        await self._database.call(lambda connection: connection.execute(statement, (*columns.values(), run_id)))

    async def egress_rules(self, run_id: str) -> tuple[str, ...] | None:
        """The host patterns that the run may reach at this moment; None: it has no proxy, or was removed."""

        def work(connection: sqlite3.Connection) -> tuple[str, ...] | None:
            row = connection.execute("SELECT egress, egress_added FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            return None if row is None else _egress(row)

        return await self._database.call(work)

    async def add_egress(self, run_id: str, rule: str, *, at_most: int) -> bool:
        """One more host pattern for an unfinished run; False: it has it already.

        Raises ConflictError: it has finished, or as many were added as there may be.
        """

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT state, egress_added FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None or row["state"] == "finished":
                raise ConflictError(f"run {run_id} has finished")
            added = json.loads(row["egress_added"])
            if rule in added:
                return False
            if len(added) >= at_most:
                raise ConflictError(
                    f"{at_most} hosts were allowed for this run already; put more into the configuration"
                )
            connection.execute("UPDATE runs SET egress_added = ? WHERE run_id = ?", (to_json([*added, rule]), run_id))
            return True

        return await self._database.call(work)

    async def put_sandbox(self, run: StoredRun, *, log_path: Path) -> None:
        """Record the sandbox of a run before it is made, so that a crash leaves nothing that nobody knows of.

        What goes with it: its image and CLI version, how the limits are kept, the run's token, its credential source,
        and what it may reach, now that it is known what it logs in with.
        """
        record = run.record

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO sandboxes (sandbox_id, subagent_id, image_id, log_path, created_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (record.sandbox_id, record.subagent_id, record.image_id, str(log_path), now()),
            )
            connection.execute(
                "UPDATE runs SET sandbox_id = ?, cli_version = ?, token_sha256 = ?, enforcement = ?,"
                " credential_source = ?, egress = ? WHERE run_id = ?",
                (
                    record.sandbox_id,
                    record.cli_version,
                    run.token_sha256,
                    to_json(dict(record.enforcement)),
                    record.credential_source,
                    None if record.egress is None else to_json(record.egress),
                    record.run_id,
                ),
            )

        await self._database.call(work)

    async def update_sandbox(self, sandbox_id: str, *, container_id: str | None = None, ended: bool = False) -> None:
        """Note the container of a sandbox, or its end."""
        await self._database.call(
            lambda connection: connection.execute(
                "UPDATE sandboxes SET container_id = coalesce(?, container_id), ended_at = coalesce(?, ended_at)"
                " WHERE sandbox_id = ?",
                (container_id, now() if ended else None, sandbox_id),
            )
        )

    async def subagents(self, *, user_id: str | None, prefix: str | None = None) -> list[SubagentRecord]:
        """Subagents, last used first; ``prefix``: only those whose id begins with it."""

        def work(connection: sqlite3.Connection) -> list[SubagentRecord]:
            rows = connection.execute(
                "SELECT * FROM subagents WHERE (?1 IS NULL OR user_id = ?1)"
                " AND (?2 IS NULL OR substr(subagent_id, 1, length(?2)) = ?2) ORDER BY last_used_at DESC",
                (user_id, prefix),
            ).fetchall()
            return [_subagent(connection, row) for row in rows]

        return await self._database.call(work)

    async def subagent(self, subagent_id: str, *, user_id: str | None) -> StoredSubagent:
        """One subagent.  Raises NotFoundError, also for one of somebody other than ``user_id`` (None: anybody's)."""

        return await self._database.call(lambda connection: _read_subagent(connection, subagent_id, user_id))

    async def retitle_subagent(self, subagent_id: str, title: str, *, user_id: str | None) -> SubagentRecord:
        """Give a subagent another title; raises as ``subagent`` does."""

        def work(connection: sqlite3.Connection) -> SubagentRecord:
            _read_subagent(connection, subagent_id, user_id)
            connection.execute("UPDATE subagents SET title = ? WHERE subagent_id = ?", (title, subagent_id))
            return _read_subagent(connection, subagent_id, user_id).record

        return await self._database.call(work)

    async def finished_before(self, at: str) -> list[tuple[str, str]]:
        """Runs that had ended by then: (run, subagent)."""
        query = "SELECT run_id, subagent_id FROM runs WHERE state = 'finished' AND finished_at < ? ORDER BY number"
        return await self._database.call(
            lambda connection: [(row["run_id"], row["subagent_id"]) for row in connection.execute(query, (at,))]
        )

    async def delete_subagent(self, subagent_id: str) -> None:
        """Remove a subagent with its runs and events; fine when it is gone."""
        await self._database.call(
            lambda connection: connection.execute("DELETE FROM subagents WHERE subagent_id = ?", (subagent_id,))
        )


def set_session(connection: sqlite3.Connection, subagent_id: str, backend_session_id: str) -> None:
    """The CLI's session that the next run of this subagent resumes."""
    connection.execute(
        "UPDATE subagents SET backend_session_id = ?, last_used_at = ? WHERE subagent_id = ?",
        (backend_session_id, now(), subagent_id),
    )


def title_of(query: str) -> str:
    """The first line of a prompt that says something, cut where a title has to end."""
    line = next((" ".join(line.split()) for line in query.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"


def _one(connection: sqlite3.Connection, query: str, name: str) -> sqlite3.Row | None:
    """The row of a run or subagent; what cannot be an id (it may be no text that SQLite takes) is not looked for."""
    row: sqlite3.Row | None = connection.execute(query, (name,)).fetchone() if _ID.fullmatch(name) else None
    return row


def _read_run(connection: sqlite3.Connection, run_id: str, user_id: str | None) -> StoredRun:
    row = _one(connection, f"{_DRIVEN} WHERE run_id = ?", run_id)
    if row is None or user_id not in {None, row["user_id"]}:
        raise NotFoundError(f"there is no run {run_id}")
    return _stored_run(row)


def _read_subagent(connection: sqlite3.Connection, subagent_id: str, user_id: str | None) -> StoredSubagent:
    row = _one(connection, "SELECT * FROM subagents WHERE subagent_id = ?", subagent_id)
    if row is None or user_id not in {None, row["user_id"]}:
        raise NotFoundError(f"there is no subagent {subagent_id}")
    return StoredSubagent(_subagent(connection, row), _path(row))


def _path(row: sqlite3.Row) -> Path | None:
    return Path(row["source_path"]) if row["source_path"] else None


def _egress(row: sqlite3.Row) -> tuple[str, ...] | None:
    """What the run began with, and what was added."""
    if row["egress"] is None:
        return None
    return tuple(dict.fromkeys([*json.loads(row["egress"]), *json.loads(row["egress_added"])]))


def _subagent(connection: sqlite3.Connection, row: sqlite3.Row) -> SubagentRecord:
    runs = connection.execute(
        "SELECT run_id, state FROM runs WHERE subagent_id = ? ORDER BY number", (row["subagent_id"],)
    ).fetchall()
    return SubagentRecord(
        subagent_id=row["subagent_id"],
        user_id=row["user_id"],
        backend=row["backend"],
        backend_session_id=row["backend_session_id"],
        title=row["title"],
        repo=row["repo"],
        workspace=row["workspace"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        run_ids=tuple(run["run_id"] for run in runs),
        busy=any(run["state"] != "finished" for run in runs),
    )


def _stored_run(row: sqlite3.Row) -> StoredRun:
    record = RunRecord(
        run_id=row["run_id"],
        subagent_id=row["subagent_id"],
        sandbox_id=row["sandbox_id"],
        user_id=row["user_id"],
        backend=row["backend"],
        model=row["model"],
        query=row["query"],
        state=row["state"],
        outcome=row["outcome"],
        tier=row["tier"],
        repo=row["repo"],
        workspace=row["workspace"],
        limits=ResourceLimits(**json.loads(row["limits"])),
        egress=_egress(row),
        enforcement=json.loads(row["enforcement"]),
        usage=json.loads(row["usage"]),
        final_text=row["final_text"],
        error=json.loads(row["error"]) if row["error"] else None,
        exit_code=row["exit_code"],
        cli_version=row["cli_version"],
        credential_source=row["credential_source"],
        image_id=row["image_id"],
        metadata=json.loads(row["metadata"]),
        queue_position=None,
        last_seq=row["last_seq"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )
    return StoredRun(
        record=record,
        source_path=_path(row),
        backend_session_id=row["backend_session_id"],
        container_id=row["container_id"],
        token_sha256=row["token_sha256"],
        traceparent=row["traceparent"],
        cancel_requested=bool(row["cancel_requested"]),
        earlier=_sum([counts for counts in json.loads(row["earlier"]) if counts]),
    )


def _sum(usages: list[dict[str, int]]) -> Tokens:
    """A count that no run has is not known; the others are sums."""
    total: dict[str, int] = {"input": 0, "output": 0}
    for counts in usages:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return Tokens(**total)
