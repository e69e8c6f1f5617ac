"""The SQLite file: one connection in one thread, WAL, a schema version.

Every statement of podmentor's own runs in that thread, so there is one writer and no lock contention within the
service.  ``call`` is a transaction: all of it or nothing.

A commit survives the end of this process, however it comes.  When the machine itself goes down, the last moments may be
missing (``synchronous=NORMAL``; the file stays sound), but for those that were asked to be ``durable``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import StorageError
from orchestrator.system.sqlite import SqliteThread, transaction

T = TypeVar("T")

SCHEMA_VERSION = 7

SCHEMA = """
CREATE TABLE subagents (
  subagent_id TEXT PRIMARY KEY,
  user_id TEXT NOT NULL,
  backend TEXT NOT NULL,
  backend_session_id TEXT,
  title TEXT NOT NULL,
  repo TEXT,
  source_path TEXT,
  workspace TEXT NOT NULL,
  created_at TEXT NOT NULL,
  last_used_at TEXT NOT NULL
);
CREATE TABLE sandboxes (
  sandbox_id TEXT PRIMARY KEY,
  subagent_id TEXT NOT NULL REFERENCES subagents ON DELETE CASCADE,
  container_id TEXT,
  image_id TEXT NOT NULL,
  log_path TEXT NOT NULL,
  created_at TEXT NOT NULL,
  ended_at TEXT
);
CREATE TABLE runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL UNIQUE,
  subagent_id TEXT NOT NULL REFERENCES subagents ON DELETE CASCADE,
  sandbox_id TEXT REFERENCES sandboxes ON DELETE SET NULL,
  user_id TEXT NOT NULL,
  backend TEXT NOT NULL,
  model TEXT,
  query TEXT NOT NULL,
  state TEXT NOT NULL,
  outcome TEXT,
  tier INTEGER NOT NULL,
  limits TEXT NOT NULL,
  usage TEXT NOT NULL DEFAULT '{}',
  final_text TEXT,
  error TEXT,
  exit_code INTEGER,
  cli_version TEXT,
  metadata TEXT NOT NULL,
  last_seq INTEGER NOT NULL DEFAULT 0,
  created_at TEXT NOT NULL,
  started_at TEXT,
  finished_at TEXT,
  idempotency_key TEXT,
  request_sha256 TEXT NOT NULL,
  token_sha256 TEXT,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  credential_source TEXT,
  egress TEXT,
  egress_added TEXT NOT NULL DEFAULT '[]',
  enforcement TEXT NOT NULL DEFAULT '{}',
  traceparent TEXT
);
CREATE UNIQUE INDEX runs_idempotency ON runs (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_subagent ON runs (subagent_id);
CREATE INDEX runs_unfinished ON runs (state) WHERE state != 'finished';
CREATE TABLE events (
  run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
  seq INTEGER NOT NULL,
  ts TEXT NOT NULL,
  kind TEXT NOT NULL,
  source TEXT NOT NULL,
  parent_tool_call_id TEXT,
  data TEXT NOT NULL,
  PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
"""


def to_json(value: Any) -> str:
    """JSON text that SQLite and every client can take: lone surrogates (an agent can print them) become ``?``."""
    return clean(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def clean(text: str) -> str:
    """``text`` as SQLite and every client can take it: lone surrogates become ``?``."""
    return text.encode("utf-8", "replace").decode()


class Database:
    """The one connection.  Raises StorageError when the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._thread = SqliteThread(path, name="the database", prepare=self._prepare)
        self._path = path

    async def open(self) -> None:
        """Open the file; make or check its schema."""
        await self._thread.run(lambda _: None)

    async def aclose(self) -> None:
        """Close the connection once what was asked before is done."""
        await self._thread.aclose()

    async def call(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        """Run ``work`` in the database's thread, as one transaction.

        ``durable``: it is on the disk when this returns, and so is all that was committed before.
        A caller that is cancelled does not interrupt the transaction: it is finished, only nobody waits for it.
        """

        def job(connection: sqlite3.Connection) -> T:
            if durable:
                connection.execute("PRAGMA synchronous=FULL")
            try:
                with transaction(connection):
                    return work(connection)
            finally:
                if durable:
                    connection.execute("PRAGMA synchronous=NORMAL")

        return await self._thread.run(job)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        for pragma in ("synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")
        self._path.chmod(0o600)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            whose = "a newer podmentor" if version > SCHEMA_VERSION else "a podmentor from before the first release"
            raise StorageError(
                f"{self._path} was written by {whose} (schema {version}, this one knows {SCHEMA_VERSION}): install "
                "that one again, or put a backup of this one's in the file's place",
                path=str(self._path),
            )
