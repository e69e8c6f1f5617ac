"""Processes of others, held by pidfd: never confused with a reused pid, waited for without polling, ended in steps."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket as sockets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from orchestrator.system.peers import peer_of

log = logging.getLogger(__name__)

TERM_SECONDS: Final = 5.0
KILL_SECONDS: Final = 5.0


def cmdline(pid: int) -> list[str]:
    """The arguments of a process; empty when it has ended or is not ours to see."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="replace") for part in raw.split(b"\0")[:-1]]


def mounts_mention(pid: int, text: str) -> bool:
    """Whether the mount table of a process has ``text`` in it (a container's has the container's id)."""
    try:
        return text in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return False


def listening_pid(socket: Path) -> int:
    """The process that listens at a Unix socket; 0 when there is none."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(socket))
            return peer_of(probe)[0]
        except OSError:
            return 0


class HeldProcess:
    """A process that cannot be mistaken for another: its pid was checked after the descriptor was opened."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd

    @classmethod
    def open(cls, pid: int, check: Callable[[int], bool]) -> Self | None:
        """Hold ``pid`` if it lives and ``check(pid)`` says that it is the one that is meant."""
        if pid <= 1:
            return None
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        if not check(pid):
            os.close(fd)
            return None
        return cls(pid, fd)

    @classmethod
    def of_child(cls, pid: int) -> Self | None:
        """Hold a child of ours, which nothing but asyncio reaps.  (Its own ``send_signal`` would race with that.)"""
        return cls.open(pid, lambda _: True)

    def close(self) -> None:
        """Close the descriptor; the process goes on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def ended(self) -> None:
        """Wait for its end, as long as it takes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        # The descriptor may be waited for by several at once, and the loop takes one reader each.
        fd = os.dup(self._fd)
        try:
            loop.add_reader(fd, _resolve, future)
            await future
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    async def ended_within(self, seconds: float) -> bool:
        """Wait for its end, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended()
        except TimeoutError:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Signal it; nothing happens when it has ended."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._fd, number)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class WatchedProcess:
    """A process whose end the event loop notes by itself, our child or not; a child (which asyncio must not know) is
    reaped as soon as it has ended.

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


async def end(process: HeldProcess, *, term_seconds: float | None = None) -> bool:
    """TERM, 5 s (or ``term_seconds``), KILL, 5 s.  Whether it has ended."""
    process.send(signal.SIGTERM)
    if await process.ended_within(TERM_SECONDS if term_seconds is None else term_seconds):
        return True
    process.send(signal.SIGKILL)
    return await process.ended_within(KILL_SECONDS)


async def ensure_end(process: HeldProcess, *, seconds: float) -> None:
    """Give a process that should end by itself some time for it; then kill it."""
    if not await process.ended_within(seconds):
        log.warning("process %d of a removed container was still there: killed", process.pid)
        process.send(signal.SIGKILL)
        await process.ended_within(KILL_SECONDS)


async def run(argv: Sequence[str], *, timeout: float, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a short-lived command and reap it: exit code and the end of what it wrote to standard error.

    When the time is over, or the caller is cancelled, it is killed.  Raises TimeoutError, OSError.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env=env,
    )
    held = HeldProcess.of_child(child.pid)
    try:
        async with asyncio.timeout(timeout):
            _, errors = await child.communicate()
    finally:
        if held is not None:
            with held:
                held.send(signal.SIGKILL)
                await asyncio.shield(child.wait())
    return child.returncode or 0, errors.decode(errors="replace")[-500:].strip()


def most_files() -> int | None:
    """How many files we may open, by the hard limit; None: there is none."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
