"""Starts the relay process so that it outlives us; watches and ends it by a handle that cannot come to mean another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""Where the packages lie, in a checkout as in site-packages."""
READY_FD: Final = 3


class Process:
    """A running process by its pidfd, our child or not; a child is reaped as soon as it has ended.

    Needs a running event loop.  Raises: ProcessLookupError when there is no such process (any more).
    """

    def __init__(self, pid: int, *, child: bool) -> None:
        self.pid = pid
        self.child = child
        self._fd = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_end)

    @property
    def ended(self) -> bool:
        """Whether it has ended, as far as the event loop has noticed."""
        return self._ended.is_set()

    def _on_end(self) -> None:
        if self.child:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._ended.set()
        self.close()

    async def wait(self, seconds: float) -> bool:
        """Whether it has ended within ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self.ended

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it has ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        """Stop watching; a process that runs goes on."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def start_detached(python: str, arguments: Sequence[str], *, log_path: Path, ready_seconds: float) -> tuple[int, bool]:
    """Start ``python -m orchestrator.relay``; (pid, whether it said that it is ready).  Blocks: use a thread.

    It gets a session of its own, nothing of our environment and none of our descriptors; ``posix_spawn``, because the
    classes of ``subprocess`` and asyncio end or complain about a child that is left running.
    Raises: OSError.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawn(
            python,
            [python, "-P", "-m", "orchestrator.relay", "--ready-fd", str(READY_FD), *arguments],
            {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, writer, READY_FD),
            ],
            setsid=True,
            setsigmask=[],
        )
        os.close(writer)
        writer = -1
        # Its end closes the pipe too, so this wakes up either way.
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        ready = poll.poll(ready_seconds * 1000)
        return pid, bool(ready) and bool(os.read(reader, 16))
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
