"""Memory of a container that no process need have mapped: files in its tmpfs mounts, and memfds.

What lies in a tmpfs is known from the file system itself (statvfs).  A memfd is found at the descriptors of the
processes, which takes time with many of them; how much shared memory the whole machine has gained since then (one line
of /proc/meminfo) is a bound that costs nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.runs.limits.file_usage import OpenFiles, open_files
from orchestrator.runs.limits.userns_probe import look_inside
from orchestrator.system.mounts import read_mounts

_AGAIN_SECONDS: Final = 2.0
"""After so long memfds are looked for in any case: others may have freed what this container has gained."""
_INSIDE_SECONDS: Final = 1.0
"""Between two looks from inside, which cost a process each."""


class SharedMemory:
    """Measures one container.  ``init_pid``: its first process, which has the container's mounts."""

    def __init__(self, init_pid: int, proc: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._init = init_pid
        self._proc = str(proc)
        self._clock = clock
        self._mounts = _tmpfs_mounts(proc, init_pid)
        self._files = OpenFiles()
        self._looked = -_AGAIN_SECONDS
        self._looked_inside = -_INSIDE_SECONDS
        self._machine = _machine_wide(self._proc)

    def in_files(self) -> int:
        """Bytes of the files in its tmpfs mounts."""
        total = 0
        for point in self._mounts.values():
            with suppress(OSError):
                found = os.statvfs(f"{self._proc}/{self._init}/root{point}")
                total += (found.f_blocks - found.f_bfree) * found.f_frsize
        return total

    def bound(self, pids: Sequence[int]) -> int:
        """At most so many bytes (but for what others have freed since the last look at the memfds)."""
        if self._clock() - self._looked >= _AGAIN_SECONDS:
            self._look(pids)
        gained = max(0, _machine_wide(self._proc) - self._machine)
        return self.in_files() + self._files.nameless + gained

    def exact(self, pids: Sequence[int], mapped: int) -> int:
        """Bytes that are not among the ``mapped`` ones: what the processes have mapped of all kinds of shared memory.

        What is both in a tmpfs or memfd and mapped is counted once only where there is enough of both to matter.
        """
        self._look(pids)
        hidden = self.in_files() + self._files.nameless
        if min(hidden, mapped) < 1024**2:
            return hidden
        nameless = frozenset(self._files.nameless_at)
        return max(0, hidden - sum(_mapped_of(self._proc, pid, self._mounts.keys(), nameless) for pid in pids))

    def _look(self, pids: Sequence[int]) -> None:
        self._looked = self._clock()
        self._machine = _machine_wide(self._proc)
        files = open_files(self._proc, pids, ())
        if files.closed:
            files = self._from_inside(pids, files)
        self._files = files

    def _from_inside(self, pids: Sequence[int], files: OpenFiles) -> OpenFiles:
        if self._looked - self._looked_inside < _INSIDE_SECONDS:
            return self._files
        self._looked_inside = self._looked
        found = look_inside(self._init, walks=(), proc=self._proc, pids=pids, devices=())
        return files if found is None else found[1]


def _tmpfs_mounts(proc: Path, pid: int) -> dict[str, str]:
    """Mount point by device number, of each tmpfs that is mounted whole and writable: the container's own ones."""
    found: dict[str, str] = {}
    with suppress(OSError):
        if _mount_namespace(proc, pid) == _mount_namespace(proc, os.getpid()):
            return found  # not a container: these are the machine's
        for mount in read_mounts(pid, proc=proc):
            if mount.kind == "tmpfs" and mount.root == "/" and "rw" in mount.options:
                found.setdefault(mount.device, mount.point)
    return found


def _mount_namespace(proc: Path, pid: int) -> int:
    with suppress(FileNotFoundError):
        return (proc / str(pid) / "ns" / "mnt").stat().st_ino
    return -pid  # it has none that can be read


def _machine_wide(proc: str) -> int:
    """Bytes of shared memory of the whole machine; 0 where that cannot be read."""
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/meminfo", "rb") as file:  # noqa: PTH123
        text = file.read()
        return int(text[text.index(b"\nShmem:") + 7 :].split(None, 1)[0]) * 1024
    return 0


def _mapped_of(proc: str, pid: int, devices: AbstractSet[str], nameless: frozenset[int]) -> int:
    """Proportional bytes that a process has mapped of these file systems and memfds."""
    total = 0
    counts = False
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/smaps", "rb") as file:  # noqa: PTH123
        for line in file:
            if line[:1].isupper():
                if counts and line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
                continue
            *_, device, inode, path = (*line.rstrip().split(None, 5), b"")[:6]
            major, minor = (int(part, 16) for part in device.split(b":"))
            counts = f"{major}:{minor}" in devices or (int(inode) in nameless and path.startswith(b"/memfd:"))
    return total
