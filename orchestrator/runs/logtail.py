"""Follows the logs that conmon writes, woken by inotify: no polling, one descriptor for all runs.

The kernel has so many watches for each user, all containers of this service together, and an agent can take them all:
then logs are looked at again and again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncinotify import Inotify, Mask, Watch

from orchestrator.tasks import TaskOwner

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""How often a log is looked at for which there is no watch."""
CHUNK = 64 * 1024
"""Bytes per read: small enough that parsing one chunk does not hold up the other runs."""


class LogTail:
    """Reads one log from ``offset``; made by ``LogWatcher.tail``."""

    def __init__(self, path: Path, offset: int, executor: ThreadPoolExecutor) -> None:
        self.path = path
        self._offset = offset
        self._executor = executor
        self._written = asyncio.Event()
        self._complete = False

    def wake(self) -> None:
        """The file has grown (or may have)."""
        self._written.set()

    def finish(self) -> None:
        """Nothing more will be written: end after what is there."""
        self._complete = True
        self._written.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the log as they come, until ``finish`` was called and the end is reached."""
        loop = asyncio.get_running_loop()
        descriptor = await loop.run_in_executor(
            self._executor, lambda: os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        )
        try:
            while True:
                self._written.clear()
                complete = self._complete
                chunk = await loop.run_in_executor(self._executor, os.pread, descriptor, CHUNK, self._offset)
                if chunk:
                    self._offset += len(chunk)
                    yield chunk
                elif complete:
                    return
                else:
                    await self._written.wait()
        finally:
            os.close(descriptor)


class LogWatcher:
    """The one inotify descriptor; an async context manager."""

    def __init__(self) -> None:
        self._tasks = TaskOwner("logs")
        self._inotify = _inotify()
        self._tails: dict[Watch, LogTail] = {}
        self._polled: dict[LogTail, asyncio.Task[None]] = {}
        self._executor = ThreadPoolExecutor(max_workers=4, thread_name_prefix="log")

    async def __aenter__(self) -> Self:
        if self._inotify is not None:
            self._inotify.__enter__()
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
            if self._inotify is not None:
                self._tails[self._inotify.add_watch(path, Mask.MODIFY | Mask.CLOSE_WRITE)] = tail
                return tail
        except OSError as error:
            log.warning("a log is polled, there is no watch to be had: %s", error)
        self._polled[tail] = self._tasks.spawn(_poll(tail), name="poll")
        return tail

    def release(self, tail: LogTail) -> None:
        """Stop watching for this tail."""
        if (task := self._polled.pop(tail, None)) is not None:
            task.cancel()
        for watch, known in list(self._tails.items()):
            if known is tail:
                del self._tails[watch]
                with suppress(OSError):  # the kernel dropped it with the file
                    if self._inotify is not None:
                        self._inotify.rm_watch(watch)


def _inotify() -> Inotify | None:
    try:
        return Inotify()
    except OSError as error:
        log.warning("all logs are polled, there is no inotify to be had: %s", error)
        return None


async def _poll(tail: LogTail) -> None:
    while True:
        tail.wake()
        await asyncio.sleep(POLL_SECONDS)
