"""Reading the world: files, commands, sockets.  The checks see only the Protocol, so tests can show them anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.system.files import write_atomic

OUTPUT_LIMIT = 4 * 1024**2
"""Bytes of a command's output that are kept."""
READ_SIZE = 64 * 1024
REAP_SECONDS = 5.0


@dataclass(frozen=True)
class Output:
    """What a command did.  ``code`` is None when it did not run or did not end in time; ``stderr`` then says so."""

    code: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def good(self) -> bool:
        """Whether it ran to its end with exit code 0."""
        return self.code == 0

    @property
    def complaint(self) -> str:
        """The last thing it said, in one line: the part of an error message that names the cause."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1][:400] if lines else f"exit code {self.code}, no message"


@dataclass(frozen=True)
class PathFacts:
    """What is known of a path that exists.  ``mode``: permission bits; ``free_bytes``: left on its file system."""

    uid: int
    mode: int
    is_dir: bool
    readable: bool
    writable: bool
    device: int
    free_bytes: int
    free_inodes: int | None
    """None where the file system does not count them (btrfs)."""
    privileged: bool = False
    """Setuid, or with file capabilities."""


class Probe(Protocol):
    """The world as the checks see it.  Nothing here raises for what may be missing; every wait is bounded."""

    @property
    def uid(self) -> int:
        """Our numeric user id."""
        ...

    @property
    def user(self) -> str:
        """Our name, or the number where there is no name."""
        ...

    async def run(self, *argv: str, timeout: float = 20.0) -> Output:
        """Run a command to its end, at most ``timeout`` seconds."""
        ...

    async def read(self, path: Path) -> str | None:
        """The text of a small file; None when it cannot be read."""
        ...

    async def facts(self, path: Path) -> PathFacts | None:
        """What is known of ``path``; None when there is nothing (or nothing that we may see)."""
        ...

    async def which(self, name: str) -> str | None:
        """Path of a command on ``$PATH``; None when there is none."""
        ...

    async def ping(self, socket: Path, *, timeout: float = 5.0) -> str | None:
        """None when a Podman service answers at ``socket``, else what went wrong."""
        ...

    async def serve(self, *argv: str, socket: Path, timeout: float = 20.0) -> str | None:
        """Start the service ``argv`` and end it again; None when it answered at ``socket``, else what went wrong."""
        ...

    async def make_rootfs(self, path: Path) -> str | None:
        """Make an empty root file system for a container at ``path``; None, or what went wrong."""
        ...

    async def remove(self, path: Path) -> None:
        """Remove what ``make_rootfs`` made."""
        ...

    async def write(self, path: Path, text: str) -> None:
        """Replace a small file, readable by us alone; a failure is silent: what is written here is only a memory."""
        ...


class SystemProbe:
    """This machine, as the user that we are."""

    @property
    def uid(self) -> int:
        return os.getuid()

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    async def run(self, *argv: str, timeout: float = 20.0) -> Output:
        try:
            process = await _start(argv)
        except OSError as error:
            return Output(None, stderr=f"{argv[0]}: {error.strerror or error}")
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            return Output(None, stderr=f"`{' '.join(argv[:3])} …` did not end within {timeout:.0f} s")
        finally:
            await _end(process)
        return Output(process.returncode, _text(stdout), _text(stderr))

    async def read(self, path: Path) -> str | None:
        def read() -> str | None:
            try:
                with path.open("rb") as file:
                    # in pieces: /proc/sys refuses (ENOMEM) a single read of megabytes
                    return _text(b"".join(iter(lambda: file.read(READ_SIZE), b"")))
            except OSError:
                return None

        return await asyncio.to_thread(read)

    async def facts(self, path: Path) -> PathFacts | None:
        return await asyncio.to_thread(_facts, path)

    async def which(self, name: str) -> str | None:
        return await asyncio.to_thread(shutil.which, name)

    async def ping(self, socket: Path, *, timeout: float = 5.0) -> str | None:
        return await _bounded(_ping(socket), timeout)

    async def serve(self, *argv: str, socket: Path, timeout: float = 20.0) -> str | None:
        try:
            process = await _start(argv)
        except OSError as error:
            return f"{argv[0]}: {error.strerror or error}"
        try:
            return await _bounded(_answer(process, socket), timeout)
        finally:
            await _end(process)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(socket.unlink)

    async def make_rootfs(self, path: Path) -> str | None:
        def make() -> str | None:
            try:
                # every mount point is made here and by us: what Podman makes belongs to a subordinate id, and only
                # `podman unshare` could remove it
                for name in ("dev", "etc", "proc", "run", "sys", "tmp", "var/tmp"):
                    (path / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                return f"{path}: {error.strerror or error}"
            return None

        return await asyncio.to_thread(make)

    async def remove(self, path: Path) -> None:
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def write(self, path: Path, text: str) -> None:
        def write() -> None:
            with contextlib.suppress(OSError):
                write_atomic(path, text.encode(), durable=False)

        await asyncio.to_thread(write)


def _text(data: bytes) -> str:
    return data[:OUTPUT_LIMIT].decode("utf-8", "replace")


async def _start(argv: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # so that the end reaches its children too
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what still runs of a command, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), REAP_SECONDS)


async def _bounded(attempt: Awaitable[str | None], timeout: float) -> str | None:
    try:
        return await asyncio.wait_for(attempt, timeout)
    except TimeoutError:
        return f"no answer within {timeout:.0f} s"


async def _ping(socket: Path) -> str | None:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
    except OSError as error:
        return f"{socket}: {error.strerror or error}"
    try:
        writer.write(b"GET /_ping HTTP/1.1\r\nHost: podman\r\nConnection: close\r\n\r\n")
        await writer.drain()
        line = await reader.readline()
    except (OSError, ValueError) as error:
        return f"{socket}: {error}"
    finally:
        writer.close()
    words = line.split()
    return None if len(words) > 1 and words[1] == b"200" else f"{socket} answers {line[:80]!r}"


async def _answer(process: asyncio.subprocess.Process, socket: Path) -> str | None:
    """Wait until the service that is starting answers, or has ended."""
    pause = 0.02
    while process.returncode is None:
        if await _ping(socket) is None:
            return None
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    _, stderr = await process.communicate()
    return Output(process.returncode, stderr=_text(stderr)).complaint


def _facts(path: Path) -> PathFacts | None:
    try:
        status = path.stat()
        room = os.statvfs(path)
    except OSError:
        return None
    return PathFacts(
        uid=status.st_uid,
        mode=stat.S_IMODE(status.st_mode),
        is_dir=stat.S_ISDIR(status.st_mode),
        readable=os.access(path, os.R_OK),
        writable=os.access(path, os.W_OK),
        device=status.st_dev,
        free_bytes=room.f_bavail * room.f_frsize,
        free_inodes=room.f_favail if room.f_files else None,
        privileged=bool(status.st_mode & stat.S_ISUID) or _has_capabilities(path),
    )


def _has_capabilities(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
