"""What people did with the changes of agents: one JSON object a line, appended to ``<state>/audit.jsonl``.

A run that has finished takes no more events, and a conversation can be deleted; this record outlives both.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from orchestrator.errors import StorageError
from orchestrator.runs.clock import now


class AuditLog:
    """Appends; the file is made at the first record, for nobody but us."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def append(self, action: str, **details: object) -> None:
        """Note an action.  Raises StorageError."""
        line = json.dumps({"at": now(), "action": action, **details}, separators=(",", ":")).encode() + b"\n"
        try:
            await asyncio.to_thread(self._write, line)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error

    def _write(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            os.write(fd, line)  # one write, so that two records never mix
            os.fsync(fd)
        finally:
            os.close(fd)
