"""Rows of runs and subagents, and the records that they become."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from orchestrator.contract.adapter import Resumed
from orchestrator.contract.runs import RunRecord, SubagentRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.events import Tokens
from orchestrator.runs.storage.egress_rows import rules_of

_RUN = (
    "SELECT runs.*, subagents.repo, subagents.source_path, subagents.workspace, subagents.backend_session_id,"
    " sandboxes.image_id, sandboxes.container_id, {earlier} AS earlier FROM runs JOIN subagents USING (subagent_id)"
    " LEFT JOIN sandboxes USING (sandbox_id)"
)
LISTED = _RUN.format(earlier="'[]'")
DRIVEN = _RUN.format(
    earlier="(SELECT json_group_array(json_extract(before.usage, '$.tokens')) FROM runs AS before"
    " WHERE before.subagent_id = runs.subagent_id AND before.number < runs.number)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run with what only the supervisor needs to know."""

    record: RunRecord
    source_path: Path | None
    backend_session_id: str | None
    container_id: str | None
    token_sha256: str | None
    traceparent: str | None
    """The trace context of the request, as it came."""
    cancel_requested: bool
    earlier: Tokens
    """What the subagent's earlier runs have used together; known where the run is to be driven, not in a list."""

    @property
    def resumed(self) -> Resumed | None:
        """The conversation that it continues."""
        if self.backend_session_id is None:
            return None
        return Resumed(session_id=self.backend_session_id, tokens=self.earlier)


def subagent_of(connection: sqlite3.Connection, row: sqlite3.Row) -> SubagentRecord:
    """A row of ``subagents`` with its runs."""
    runs = connection.execute(
        "SELECT run_id, state FROM runs WHERE subagent_id = ? ORDER BY number", (row["subagent_id"],)
    ).fetchall()
    return SubagentRecord(
        subagent_id=row["subagent_id"],
        user_id=row["user_id"],
        backend=row["backend"],
        backend_session_id=row["backend_session_id"],
        repo=row["repo"],
        workspace=row["workspace"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        run_ids=tuple(run["run_id"] for run in runs),
        busy=any(run["state"] != "finished" for run in runs),
    )


def stored_run(row: sqlite3.Row) -> StoredRun:
    """A row of ``LISTED`` or ``DRIVEN``."""
    record = RunRecord(
        run_id=row["run_id"],
        subagent_id=row["subagent_id"],
        sandbox_id=row["sandbox_id"],
        user_id=row["user_id"],
        backend=row["backend"],
        query=row["query"],
        state=row["state"],
        outcome=row["outcome"],
        tier=row["tier"],
        repo=row["repo"],
        workspace=row["workspace"],
        limits=ResourceLimits(**json.loads(row["limits"])),
        egress=rules_of(row),
        memory_enforcement=row["memory_enforcement"],
        enforcement=json.loads(row["enforcement"]),
        usage=json.loads(row["usage"]),
        final_text=row["final_text"],
        error=json.loads(row["error"]) if row["error"] else None,
        exit_code=row["exit_code"],
        cli_version=row["cli_version"],
        credential_link=row["credential_link"],
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
        source_path=Path(row["source_path"]) if row["source_path"] else None,
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
