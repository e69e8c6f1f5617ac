"""Follows the logs that conmon writes, woken by inotify: no polling, one descriptor for all runs.

The kernel counts inotify descriptors and watches by user, and those that agents make in their containers count as ours.
When none can be had any more, logs are looked at every now and then instead: slower, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncinotify import Inotify, Mask, Watch

from orchestrator.errors import StorageError
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
"""Bytes per read: small enough that parsing one chunk does not hold up the other runs."""
LOOK_SECONDS = 0.2
"""Between two looks at a log that cannot be watched."""


class LogTail:
    """Reads one log from ``offset``; made by ``LogWatcher.tail``."""

    def __init__(self, path: Path, offset: int, executor: ThreadPoolExecutor) -> None:
        self.path = path
        self._offset = offset
        self._executor = executor
        self._written = asyncio.Event()
        self._complete = False
        self.watched = True
        """Whether somebody will call ``wake``."""

    def wake(self) -> None:
        """The file has grown (or may have)."""
        self._written.set()

    def finish(self) -> None:
        """Nothing more will be written: end after what is there."""
        self._complete = True
        self._written.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the log as they come, until ``finish`` was called and the end is reached.

        Raises StorageError when the log is not there or was made shorter: its events would be wrong from there on.
        """
        loop = asyncio.get_running_loop()
        try:
            descriptor = await loop.run_in_executor(
                self._executor, lambda: os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            )
        except OSError as error:
            raise StorageError(f"the log {self.path} cannot be read: {error.strerror}") from error
        try:
            while True:
                self._written.clear()
                complete = self._complete
                chunk = await loop.run_in_executor(self._executor, self._read, descriptor)
                if chunk:
                    self._offset += len(chunk)
                    yield chunk
                elif complete:
                    return
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None if self.watched else LOOK_SECONDS):
                            await self._written.wait()
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> bytes:
        try:
            chunk = os.pread(descriptor, CHUNK, self._offset)
            if not chunk and os.fstat(descriptor).st_size < self._offset:
                raise StorageError(f"the log {self.path} was made shorter by somebody while it was read")
        except OSError as error:
            raise StorageError(f"the log {self.path} cannot be read: {error.strerror}") from error
        return chunk


class LogWatcher:
    """The one inotify descriptor; an async context manager."""

    def __init__(self) -> None:
        self._tasks = TaskOwner("logs")
        self._inotify: Inotify | None = None
        self._tails: dict[Watch, LogTail] = {}
        self._executor = ThreadPoolExecutor(max_workers=4, thread_name_prefix="log")

    async def __aenter__(self) -> Self:
        try:
            self._inotify = Inotify().__enter__()
        except OSError as error:
            log.warning(
                "there is no inotify descriptor left for this user (%s): logs are looked at every %.1f s",
                error,
                LOOK_SECONDS,
            )
        else:
            self._tasks.spawn(self._dispatch(self._inotify), name="inotify")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.aclose()
        if self._inotify is not None:
            self._inotify.__exit__(kind, error, trace)
        self._executor.shutdown(wait=False)

    async def _dispatch(self, inotify: Inotify) -> None:
        async for event in inotify:
            if event.mask & Mask.Q_OVERFLOW:
                for tail in self._tails.values():
                    tail.wake()
            elif event.watch is not None and (found := self._tails.get(event.watch)) is not None:
                found.wake()

    def tail(self, path: Path, *, offset: int = 0) -> LogTail:
        """Follow ``path`` (it must exist) from ``offset``; give it back with ``release``."""
        tail = LogTail(path, offset, self._executor)
        try:
            if self._inotify is None:
                tail.watched = False
            else:
                self._tails[self._inotify.add_watch(path, Mask.MODIFY | Mask.CLOSE_WRITE)] = tail
        except OSError as error:
            log.warning("%s cannot be watched, so it is looked at every %.1f s: %s", path, LOOK_SECONDS, error)
            tail.watched = False
        return tail

    def release(self, tail: LogTail) -> None:
        """Stop watching for this tail."""
        for watch, known in list(self._tails.items()):
            if known is tail:
                del self._tails[watch]
                if self._inotify is not None:
                    with suppress(OSError):  # the kernel dropped it with the file
                        self._inotify.rm_watch(watch)
