"""The watchdog for machines where no cgroup limits memory: measures a container from outside and reports excess.

What belongs to a container is known by its pid namespace, which no process can leave, however often it forks;
namespaces made inside it count as well.  Two measures are used: the resident sizes are cheap but count shared pages
once for each process, so they are only an upper bound; the proportional sizes (Pss) are exact and cost time.  The exact
ones are asked for when the bound is above the limit, or has grown enough for the peak to matter.

Files in the container's tmpfs mounts and memfds count too, though no process need have them mapped (``shared_memory``).
Not counted: what the kernel itself holds for the processes (buffers of sockets and pipes, page tables), and a memfd
that is nowhere open because it lies in the queue of a socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from orchestrator.runs.limits.shared_memory import SharedMemory

PROC: Final = Path("/proc")
_NS_GET_PARENT: Final = 0xB702
_MAX_NESTING: Final = 33
"""The kernel allows 32 pid namespaces inside one another."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_COUNT_SECONDS: Final = 1.0
"""Between two looks at processor time and threads."""
_GROWTH: Final = 16
"""The peak is measured again once the bound has grown by one part in so many."""


@dataclass(slots=True)
class _Scan:
    """The processes of the machine at one moment."""

    taken: float
    by_namespace: dict[int, list[int]] = field(default_factory=dict)
    around: dict[int, frozenset[int]] = field(default_factory=dict)
    """For each namespace those that it is nested in."""


class ProcessTable:
    """One look at /proc serves all meters that ask within ``max_age`` seconds.

    It owns the thread on which they measure, so that neither the event loop nor the pool that others wait in is held
    up.  ``aclose`` it at the end.
    """

    def __init__(
        self, *, proc: Path = PROC, max_age: float = 0.05, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.proc = proc
        self._max_age = max_age
        self._clock = clock
        self._scan: _Scan | None = None
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="memory")
        self.walkers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="disk")
        """For what may take seconds: walks over what containers have on disk."""

    def members(self, namespace: int) -> list[int]:
        """The processes in the pid namespace with this inode number and in those nested in it."""
        scan = self._fresh()
        found: list[int] = []
        for inode, pids in scan.by_namespace.items():
            if inode == namespace or namespace in scan.around[inode]:
                found += pids
        return found

    def descendants(self, root: int) -> list[int]:
        """``root`` and its children, their children and so on, as far as they are still attached to it."""
        children: dict[int, list[int]] = {}
        for pid in self._pids():
            if (parent := _stat_field(self.proc, pid, 4)) is not None:
                children.setdefault(parent, []).append(pid)
        found = [root] if (self.proc / str(root)).exists() else []
        for pid in found:
            found += children.get(pid, [])
        return found

    async def aclose(self) -> None:
        """End the threads (after what they are at)."""
        await asyncio.to_thread(self.executor.shutdown)
        await asyncio.to_thread(self.walkers.shutdown)

    def _pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self.proc) if name.isdigit()]  # noqa: PTH208  # ten times a second

    def _fresh(self) -> _Scan:
        now = self._clock()
        if self._scan is None or now - self._scan.taken >= self._max_age:
            scan = _Scan(now)
            for pid in self._pids():
                if (inode := namespace_of(self.proc, pid)) is not None:
                    scan.by_namespace.setdefault(inode, []).append(pid)
            scan.around = {inode: _around(self.proc, pids[0]) for inode, pids in scan.by_namespace.items()}
            self._scan = scan
        return self._scan


class MemoryMeter:
    """Measures one container.  ``init_pid``: its first process, as seen from here; it must be running.

    Where that process has no pid namespace of its own, or it may not be looked at, its descendants are measured.
    Make it with ``of`` where a loop runs; ``close`` it at the end (or use it in a ``with``).
    """

    def __init__(self, init_pid: int, table: ProcessTable) -> None:
        self._init = init_pid
        self._table = table
        self._exact_at = 0
        self.peak_bytes = 0
        """The highest exact measure so far."""
        self.peak_pids = 0
        """The most processes at once; with their threads, where those were counted."""
        self.cpu_seconds = 0.0
        """Of all processes, those that have ended and were waited for included; at most a second late."""
        self._counted_at = -_COUNT_SECONDS
        self._shared = SharedMemory(init_pid, table.proc)
        self._started = _stat_field(table.proc, init_pid, 22)
        self._closed = False
        self._namespace: int | None = None
        self._fd: int | None = None
        own = namespace_of(table.proc, os.getpid())
        with suppress(OSError):
            # Held open, so that the kernel gives its number to no other namespace after the container has ended.
            fd = os.open(table.proc / str(init_pid) / "ns" / "pid", os.O_RDONLY | os.O_CLOEXEC)
            if (inode := os.fstat(fd).st_ino) == own:
                os.close(fd)
            else:
                self._namespace, self._fd = inode, fd

    @classmethod
    async def of(cls, init_pid: int, table: ProcessTable) -> Self:
        """The meter of the container with this first process."""
        return await asyncio.get_running_loop().run_in_executor(table.executor, cls, init_pid, table)

    def sample(self, limit_bytes: int) -> int | None:
        """Bytes in use: exact when above ``limit_bytes``, else an upper bound.  None: no process is left."""
        pids = self._pids()
        if not pids:
            return None
        self._count(pids)
        proc = self._table.proc
        bound = sum(_resident(proc, pid) for pid in pids) + self._shared.bound(pids)
        if bound <= limit_bytes and bound <= self._exact_at + self._exact_at // _GROWTH:
            return bound
        self._exact_at = bound
        parts = [_proportional(proc, pid) for pid in pids]
        mapped = sum(part.shared for part in parts)
        used = sum(part.total for part in parts) + self._shared.exact(pids, mapped)
        self.peak_bytes = max(self.peak_bytes, used)
        return used

    def _count(self, pids: list[int]) -> None:
        self.peak_pids = max(self.peak_pids, len(pids))
        if (now := time.monotonic()) - self._counted_at < _COUNT_SECONDS:
            return
        self._counted_at = now
        stats = [_stat_fields(self._table.proc, pid) for pid in pids]
        self.peak_pids = max(self.peak_pids, sum(fields[17] for fields in stats if fields))  # num_threads
        ticks = sum(sum(fields[11:15]) for fields in stats if fields)  # utime, stime, and those of waited-for children
        self.cpu_seconds = max(self.cpu_seconds, ticks / _TICKS)

    def pids(self) -> list[int]:
        """The container's processes at this moment; none once the meter is closed."""
        return [] if self._closed else self._pids()

    async def measure(self, limit_bytes: int) -> int | None:
        """``sample`` on the table's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._table.executor, self.sample, limit_bytes)

    def close(self) -> None:
        """Close the namespace's descriptor.  Safe to call twice."""
        self._closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _pids(self) -> list[int]:
        if self._namespace is not None:
            return self._table.members(self._namespace)
        if self._started is None or _stat_field(self._table.proc, self._init, 22) != self._started:
            return []  # it has ended, or its number belongs to another process by now
        return self._table.descendants(self._init)


async def watch_memory(
    meter: MemoryMeter,
    *,
    limit_bytes: int,
    on_excess: Callable[[int], Awaitable[None]],
    warn_bytes: int | None = None,
    on_warning: Callable[[int], None] | None = None,
    interval: float = 0.1,
) -> None:
    """Measure every ``interval`` seconds until no process is left, or more than ``limit_bytes`` are in use: then
    ``on_excess`` is awaited once, with the bytes in use, and the watch is over.

    ``on_warning`` is called once, when more than ``warn_bytes`` are in use.
    """
    mark = limit_bytes if warn_bytes is None else min(warn_bytes, limit_bytes)
    while (used := await meter.measure(mark)) is not None:
        if used > mark and on_warning is not None:
            on_warning(used)
            on_warning = None
        if used > limit_bytes:
            await on_excess(used)
            return
        mark = limit_bytes if used > mark else mark
        await asyncio.sleep(interval)


def namespace_of(proc: Path, pid: int) -> int | None:
    """Inode number of a process's pid namespace; None when it has ended or may not be looked at."""
    try:
        return os.stat(f"{proc}/{pid}/ns/pid").st_ino  # noqa: PTH116  # a Path for each process would double the cost
    except OSError:
        return None


def _around(proc: Path, pid: int) -> frozenset[int]:
    """The pid namespaces that the one of ``pid`` is nested in, as far as ours, which is not passed."""
    out: list[int] = []
    with suppress(OSError):
        fd = os.open(f"{proc}/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(out) < _MAX_NESTING:
                parent = fcntl.ioctl(fd, _NS_GET_PARENT)  # EPERM at our own: it has no parent that we may see
                os.close(fd)
                fd = parent
                out.append(os.fstat(fd).st_ino)
        finally:
            os.close(fd)
    return frozenset(out)


def _stat_field(proc: Path, pid: int, number: int) -> int | None:
    """A numeric field of /proc/<pid>/stat, counted from 1 as in proc(5); only those behind the command's name."""
    fields = _stat_fields(proc, pid)
    return fields[number - 3] if len(fields) > number - 3 else None


def _stat_fields(proc: Path, pid: int) -> list[int]:
    """The fields behind the command's name, the state (which is no number) as 0; empty when the process has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
        return [0, *map(int, text[text.rindex(b")") + 2 :].split()[1:])]
    except (OSError, ValueError, IndexError):
        return []


def _resident(proc: Path, pid: int) -> int:
    try:
        with open(f"{proc}/{pid}/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split(b" ")[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


class _Proportional(NamedTuple):
    """Bytes of one process.  ``shared``: those of them that are shared memory."""

    total: int
    shared: int


def _proportional(proc: Path, pid: int) -> _Proportional:
    """Pss and what is swapped out, or the resident size where that may not be read."""
    found: dict[bytes, int] = {}
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
        for line in file:
            name, _, rest = line.partition(b":")
            if name in {b"Pss", b"Pss_Shmem", b"SwapPss"}:
                found[name] = int(rest.split()[0]) * 1024
    if b"Pss" not in found:
        return _Proportional(_resident(proc, pid), 0)
    return _Proportional(found[b"Pss"] + found.get(b"SwapPss", 0), found.get(b"Pss_Shmem", 0))
