"""Runs in a store that nobody drives."""

from __future__ import annotations

from typing import Any

from orchestrator.contract.runs import RunRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.runs.storage.store import Store, StoredRun


async def insert(
    store: Store,
    run_id: str = "1" * 32,
    subagent_id: str = "a" * 32,
    *,
    new_subagent: bool = True,
    idempotency_key: str | None = None,
    request_sha256: str = "r",
    **over: Any,
) -> RunRecord:
    """A run that was just accepted; ``over``: other members of its record."""
    values: dict[str, Any] = dict.fromkeys(RunRecord.__dataclass_fields__) | {
        "run_id": run_id,
        "subagent_id": subagent_id,
        "user_id": "u",
        "backend": "echo",
        "query": "q",
        "state": "queued",
        "tier": 1,
        "workspace": "overlay",
        "limits": ResourceLimits(),
        "enforcement": {},
        "usage": {},
        "metadata": {"k": "v"},
        "last_seq": 0,
        "created_at": "2026-01-01T00:00:00.000000Z",
    }
    run = StoredRun(record=RunRecord(**{**values, **over}), source_path=None)
    stored = await store.insert_run(
        run, new_subagent=new_subagent, idempotency_key=idempotency_key, request_sha256=request_sha256
    )
    return stored.record
