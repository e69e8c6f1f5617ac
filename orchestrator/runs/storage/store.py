"""Runs, subagents and sandboxes in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.contract.runs import RunFilter, RunRecord, SubagentRecord, WorkspaceMode
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import ConflictError, NotFoundError
from orchestrator.runs.clock import now
from orchestrator.runs.storage.database import Database
from orchestrator.runs.storage.egress_rows import add_rule
from orchestrator.runs.storage.rows import DRIVEN, LISTED, StoredRun, stored_run, subagent_of
from orchestrator.runs.stream.journal import to_json

__all__ = ["NewRun", "Store", "StoredRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run about to be stored; the subagent is made with it when it is new."""

    run_id: str
    subagent_id: str
    new_subagent: bool
    user_id: str
    backend: str
    query: str
    tier: int
    repo: str | None
    source_path: Path | None
    workspace: WorkspaceMode
    limits: ResourceLimits
    egress: tuple[str, ...] | None
    metadata: Mapping[str, Any]
    idempotency_key: str | None
    request_sha256: str
    traceparent: str | None = None


class Store:
    """Rows in, records out."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert_run(self, new: NewRun) -> StoredRun:
        """Store a new run.  With an idempotency key that was used: the run that it made (ConflictError when that
        was another request)."""

        def work(connection: sqlite3.Connection) -> str:
            if new.idempotency_key is not None:
                earlier = connection.execute(
                    "SELECT run_id, request_sha256 FROM runs WHERE user_id = ? AND idempotency_key = ?",
                    (new.user_id, new.idempotency_key),
                ).fetchone()
                if earlier is not None:
                    if earlier["request_sha256"] != new.request_sha256:
                        raise ConflictError("this Idempotency-Key was used for another request; take a new one")
                    return str(earlier["run_id"])
            at = now()
            if new.new_subagent:
                connection.execute(
                    "INSERT INTO subagents (subagent_id, user_id, backend, repo, source_path, workspace, created_at,"
                    " last_used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        new.subagent_id,
                        new.user_id,
                        new.backend,
                        new.repo,
                        _text(new.source_path),
                        new.workspace,
                        at,
                        at,
                    ),
                )
            elif not connection.execute(
                "UPDATE subagents SET last_used_at = ? WHERE subagent_id = ?", (at, new.subagent_id)
            ).rowcount:
                raise NotFoundError(f"there is no subagent {new.subagent_id}")
            connection.execute(
                "INSERT INTO runs (run_id, subagent_id, user_id, backend, query, state, tier, limits, egress,"
                " metadata, created_at, idempotency_key, request_sha256, traceparent)"
                " VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    new.run_id,
                    new.subagent_id,
                    new.user_id,
                    new.backend,
                    new.query,
                    new.tier,
                    to_json(asdict(new.limits)),
                    None if new.egress is None else to_json(new.egress),
                    to_json(dict(new.metadata)),
                    at,
                    new.idempotency_key,
                    new.request_sha256,
                    new.traceparent,
                ),
            )
            return new.run_id

        return await self.run(await self._database.call(work, durable=True))

    async def run(self, run_id: str) -> StoredRun:
        """One run.  Raises NotFoundError."""

        def work(connection: sqlite3.Connection) -> StoredRun:
            row = connection.execute(f"{DRIVEN} WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                raise NotFoundError(f"there is no run {run_id}")
            return stored_run(row)

        return await self._database.call(work)

    async def unfinished(self) -> list[StoredRun]:
        """All runs that have not ended, in the order in which they were accepted."""
        return await self._database.call(
            lambda connection: [
                stored_run(row) for row in connection.execute(f"{DRIVEN} WHERE state != 'finished' ORDER BY number")
            ]
        )

    async def list_runs(self, wanted: RunFilter) -> list[RunRecord]:
        """A page, newest first."""
        conditions, values = ["1"], []
        for column, value in (
            ("runs.user_id", wanted.user_id),
            ("runs.backend", wanted.backend),
            ("state", wanted.state),
            ("runs.subagent_id", wanted.subagent_id),
        ):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        if wanted.before is not None:
            conditions.append("number < (SELECT number FROM runs WHERE run_id = ?)")
            values.append(wanted.before)
        if wanted.prefix is not None:
            conditions.append("substr(run_id, 1, length(?)) = ?")  # not LIKE: "_" in an id is no wildcard
            values += [wanted.prefix, wanted.prefix]
        query = f"{LISTED} WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return await self._database.call(
            lambda connection: [stored_run(row).record for row in connection.execute(query, (*values, wanted.limit))]
        )

    async def update_run(self, run_id: str, **columns: object) -> None:
        """Change columns of a run."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE runs SET {assignments} WHERE run_id = ?"  # noqa: S608 -- column names are ours
        await self._database.call(lambda connection: connection.execute(statement, (*columns.values(), run_id)))

    async def add_egress(self, run_id: str, rule: str, *, at_most: int) -> bool:
        """One more host pattern for an unfinished run; False: it has it already.

        Raises ConflictError: it has finished, or as many were added as there may be.
        """
        return await self._database.call(lambda connection: add_rule(connection, run_id, rule, at_most=at_most))

    async def put_sandbox(
        self,
        run_id: str,
        *,
        sandbox_id: str,
        subagent_id: str,
        image_id: str,
        log_path: Path,
        cli_version: str,
        token_sha256: str,
        enforcement: Mapping[str, str],
        credential_link: str,
    ) -> None:
        """Record the sandbox of a run before it is made, so that a crash leaves nothing that nobody knows of."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO sandboxes (sandbox_id, subagent_id, image_id, log_path, created_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (sandbox_id, subagent_id, image_id, str(log_path), now()),
            )
            connection.execute(
                "UPDATE runs SET sandbox_id = ?, cli_version = ?, token_sha256 = ?, memory_enforcement = ?,"
                " enforcement = ?, credential_link = ? WHERE run_id = ?",
                (
                    sandbox_id,
                    cli_version,
                    token_sha256,
                    enforcement.get("memory_max_bytes"),
                    to_json(dict(enforcement)),
                    credential_link,
                    run_id,
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

    async def subagents(
        self, *, user_id: str | None, subagent_id: str | None = None, prefix: str | None = None
    ) -> list[SubagentRecord]:
        """Subagents, last used first; ``prefix``: only those whose id begins with it."""

        def work(connection: sqlite3.Connection) -> list[SubagentRecord]:
            rows = connection.execute(
                "SELECT * FROM subagents WHERE (?1 IS NULL OR user_id = ?1) AND (?2 IS NULL OR subagent_id = ?2)"
                " AND (?3 IS NULL OR substr(subagent_id, 1, length(?3)) = ?3) ORDER BY last_used_at DESC",
                (user_id, subagent_id, prefix),
            ).fetchall()
            return [subagent_of(connection, row) for row in rows]

        return await self._database.call(work)

    async def source_of(self, subagent_id: str) -> Path | None:
        """The directory that a conversation works on."""

        def work(connection: sqlite3.Connection) -> Path | None:
            row = connection.execute(
                "SELECT source_path FROM subagents WHERE subagent_id = ?", (subagent_id,)
            ).fetchone()
            return Path(row["source_path"]) if row is not None and row["source_path"] else None

        return await self._database.call(work)

    async def finished_before(self, at: str) -> list[tuple[str, str]]:
        """Runs that had ended by then: (run, subagent)."""
        query = "SELECT run_id, subagent_id FROM runs WHERE state = 'finished' AND finished_at < ? ORDER BY number"
        return await self._database.call(
            lambda connection: [(row["run_id"], row["subagent_id"]) for row in connection.execute(query, (at,))]
        )

    async def delete_subagent(self, subagent_id: str) -> None:
        """Remove a conversation with its runs and events."""
        await self._database.call(
            lambda connection: connection.execute("DELETE FROM subagents WHERE subagent_id = ?", (subagent_id,))
        )


def set_session(connection: sqlite3.Connection, subagent_id: str, backend_session_id: str) -> None:
    """The CLI's session that the next run of this subagent resumes."""
    connection.execute(
        "UPDATE subagents SET backend_session_id = ?, last_used_at = ? WHERE subagent_id = ?",
        (backend_session_id, now(), subagent_id),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
