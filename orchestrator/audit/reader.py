"""Reads the audit log over its rotated files, and follows it.

The names of the files move while it is read, so it goes by open files: all are opened while no writer is at work (under
the lock that writers take), and a file that was moved aside since is known by its inode.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeAlias

from asyncinotify import Inotify, Mask

from orchestrator.audit.log import KEPT
from orchestrator.contract.audit import AuditFilter, Damaged
from orchestrator.errors import StorageError

Line: TypeAlias = Mapping[str, Any] | Damaged

LOOK_SECONDS: Final = 5.0
"""How long a change that gave no sign (a file system without inotify) may go unnoticed."""
LOCK_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.01
_CHANGES: Final = Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO


@dataclass(frozen=True, slots=True)
class _Place:
    """How far the reader is."""

    inode: tuple[int, int]
    offset: int
    number: int
    """Lines before ``offset``."""


class AuditReader:
    """Implements ``AuditLines``.  Keeps nothing open between two looks."""

    def __init__(self, path: Path, *, kept: int = KEPT) -> None:
        self._path = path
        self._kept = kept
        self._place: _Place | None = None

    async def last(self, wanted: AuditFilter, count: int | None) -> list[Line]:
        """The last ``count`` wanted lines, oldest first."""
        return await asyncio.to_thread(self._last, wanted, count)

    async def follow(self, wanted: AuditFilter) -> AsyncIterator[Line]:
        """What is written from now on, or since ``last``."""
        if self._place is None:
            await asyncio.to_thread(self._last, wanted, 0)
        with Inotify() as inotify:
            inotify.add_watch(self._path.parent, _CHANGES)
            while True:
                for line in await asyncio.to_thread(self._fresh, wanted):
                    yield line
                await self._changed(inotify)

    async def _changed(self, inotify: Inotify) -> None:
        """Until something of ours has changed; other files of the directory change all the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                async for event in inotify:
                    if event.name is not None and event.name.name == self._path.name:
                        return

    def _last(self, wanted: AuditFilter, count: int | None) -> list[Line]:
        found: list[Line] = []
        with ExitStack() as stack:
            for place, one in enumerate(reversed(self._opened(stack))):  # the youngest first
                data = one.file.read(one.size)
                if place == 0:
                    self._place = _Place(one.inode, one.size, data.count(b"\n"))
                found = [*_parsed(one.name, data, 0, wanted), *found]
                if count is not None and sum(not isinstance(line, Damaged) for line in found) >= count:
                    break
        if count is None:
            return found
        start, left = len(found), count
        while start > 0 and left > 0:
            start -= 1
            left -= not isinstance(found[start], Damaged)
        return found[start:]

    def _fresh(self, wanted: AuditFilter) -> list[Line]:
        """What was written since the last look."""
        found: list[Line] = []
        with ExitStack() as stack:
            files = self._opened(stack)
            known = [index for index, one in enumerate(files) if self._place and one.inode == self._place.inode]
            for index in range(known[0] if known else 0, len(files)):
                one = files[index]
                before = self._place if known == [index] else None
                offset, number = (before.offset, before.number) if before else (0, 0)
                one.file.seek(offset)
                data = one.file.read(max(one.size - offset, 0))
                found += _parsed(one.name, data, number, wanted)
                self._place = _Place(one.inode, one.size, number + data.count(b"\n"))
        return found

    def _opened(self, stack: ExitStack) -> list[_File]:
        """Every file of the log, oldest first, as they are between two writes.  Raises StorageError."""
        try:
            current = self._locked()
            if current is not None:
                stack.enter_context(current)
            files = []
            for number in range(self._kept, 0, -1):
                path = self._path.with_name(f"{self._path.name}.{number}")
                with suppress(FileNotFoundError):
                    files.append(_File.of(path.name, stack.enter_context(_open(path))))
            if current is not None:
                files.append(_File.of(self._path.name, current))
                fcntl.flock(current, fcntl.LOCK_UN)
        except OSError as error:
            raise StorageError(f"the audit log {self._path} cannot be read: {error.strerror}") from error
        return files

    def _locked(self) -> BinaryIO | None:
        """The file that is written to, with no writer at work; None: there is none."""
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                file = _open(self._path)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    there = os.lstat(self._path)
                    if (there.st_dev, there.st_ino) == _inode(file):
                        return file
            except BlockingIOError:
                time.sleep(_STEP_SECONDS)
            except BaseException:
                file.close()
                raise
            file.close()
        raise StorageError(f"the audit log {self._path} is in use all the time")


@dataclass(frozen=True, slots=True)
class _File:
    """One of the files; ``size`` as it was between two writes."""

    name: str
    file: BinaryIO
    inode: tuple[int, int]
    size: int

    @classmethod
    def of(cls, name: str, file: BinaryIO) -> Self:
        return cls(name, file, _inode(file), os.fstat(file.fileno()).st_size)


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _inode(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _parsed(name: str, data: bytes, before: int, wanted: AuditFilter) -> Iterator[Line]:
    """The wanted lines of ``data``, and the damaged ones; ``before``: lines that came before it."""
    needle = b"" if wanted.run_id is None else wanted.run_id.encode()
    for number, raw in enumerate(data.split(b"\n"), before + 1):
        if not raw:
            continue
        line = _line(raw)
        if line is None:
            yield Damaged(name, number, len(raw))
        elif needle in raw and _is(line, wanted):
            yield line


def _line(raw: bytes) -> Mapping[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    good = isinstance(line, dict) and isinstance(line.get("event"), str) and isinstance(line.get("ts"), str)
    return line if good else None


def _is(line: Mapping[str, Any], wanted: AuditFilter) -> bool:
    return (
        (wanted.event is None or fnmatchcase(line["event"], wanted.event))
        and (wanted.user is None or wanted.user in {line.get("user_id"), str(line.get("actor")).partition(":")[2]})
        and (wanted.run_id is None or str(line.get("run_id", "")).startswith(wanted.run_id))
    )
