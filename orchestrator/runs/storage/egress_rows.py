"""The hosts that a run may reach, in the database: those that it began with, and those that were added."""

from __future__ import annotations

import json
import sqlite3

from orchestrator.errors import ConflictError
from orchestrator.runs.stream.journal import to_json


def rules_of(row: sqlite3.Row) -> tuple[str, ...] | None:
    """All host patterns of a run; None: it has no proxy."""
    if row["egress"] is None:
        return None
    return tuple(dict.fromkeys([*json.loads(row["egress"]), *json.loads(row["egress_added"])]))


def add_rule(connection: sqlite3.Connection, run_id: str, rule: str, *, at_most: int) -> bool:
    """One more; False: it is there already.  Raises ConflictError: the run has finished, or ``at_most`` were added."""
    row = connection.execute("SELECT state, egress_added FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None or row["state"] == "finished":
        raise ConflictError(f"run {run_id} has finished")
    added = json.loads(row["egress_added"])
    if rule in added:
        return False
    if len(added) >= at_most:
        raise ConflictError(f"{at_most} hosts were allowed for this run already; put more into the configuration")
    connection.execute("UPDATE runs SET egress_added = ? WHERE run_id = ?", (to_json([*added, rule]), run_id))
    return True
