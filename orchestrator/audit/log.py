"""The audit log: ``<state>/audit.log``, one JSON object a line, only ever appended to.

Several processes may write it (the service and the command): each line is one write under a lock, and whoever finds
the file full moves it aside (``audit.log.1`` is the youngest of the old ones).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from orchestrator.contract.audit import ENVELOPE, SERVICE, Fact
from orchestrator.contract.metrics import AUDIT_FAILURES, AUDIT_LINES, NO_METRICS, Metrics
from orchestrator.errors import StorageError
from orchestrator.system import times

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024**2
KEPT: Final = 8
"""Old files; the oldest goes when another one is moved aside."""


def _now() -> str:
    return times.now("milliseconds")


class AuditLog:
    """Implements ``orchestrator.contract.audit.Audit``.  Nothing is held open between two events."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        kept: int = KEPT,
        now: Callable[[], str] = _now,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._now = now
        self._metrics = metrics

    async def record(self, event: str, **facts: Fact) -> None:
        """Write one event.  Raises StorageError."""
        await self._write(self._line(event, facts))

    async def note(self, event: str, **facts: Fact) -> None:
        """Write one event, or else put it into the service's log."""
        line = self._line(event, facts)
        try:
            await self._write(line)
        except StorageError as error:
            log.error("%s; the line that is missing there: %s", error.message, line)  # noqa: TRY400

    def _line(self, event: str, facts: Mapping[str, Fact]) -> str:
        known = {"ts": self._now(), "event": event, "actor": SERVICE, **facts}
        first = {name: known.pop(name) for name in ENVELOPE if name in known}
        return json.dumps({**first, **known}, separators=(",", ":"))

    async def _write(self, line: str) -> None:
        try:
            await asyncio.to_thread(self._append, line.encode() + b"\n")
        except StorageError:
            self._metrics.add(AUDIT_FAILURES)
            raise
        self._metrics.add(AUDIT_LINES)

    def _append(self, line: bytes) -> None:
        try:
            descriptor = self._locked()
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # a crash or a full disk has cut the line before
                if os.write(descriptor, line) != len(line):
                    raise StorageError(f"the audit log {self._path} is cut: is the file system full?")
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(f"the audit log {self._path} cannot be written: {error.strerror}") from error

    def _locked(self) -> int:
        """The log's file, ours alone until it is closed, with room in it."""
        while True:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = os.fstat(descriptor)
                try:
                    there = os.lstat(self._path)
                except FileNotFoundError:
                    there = None
                if there is not None and (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino):
                    if found.st_size < self._max_bytes:
                        return descriptor
                    self._move_aside()
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # moved aside, by us or by another process: the next one is empty

    def _move_aside(self) -> None:
        for number in range(self._kept, 0, -1):
            source = self._numbered(number - 1) if number > 1 else self._path
            if source.exists():
                source.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
