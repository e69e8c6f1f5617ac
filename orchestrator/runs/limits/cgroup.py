"""What the kernel reports of a container's memory where a cgroup limits it.

Podman says that the kernel has killed something only after the container's end, only when it was the container's own
command, and often not even then: as soon as the last process is gone systemd removes the cgroup, and with it the count
that conmon (2.1.6) wants to read.  So the counters are read while the container lives, each time the kernel says that
they have changed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from asyncinotify import Inotify, Mask

PROC: Final = Path("/proc")
ROOT: Final = Path("/sys/fs/cgroup")
NEAR: Final = 0.9
"""The part of a limit from which on it counts as reached: the kernel charges ahead, and the use that is read is a
little old."""
_EVENTS: Final = "memory.events"
_USED: Final = ("memory.peak", "memory.current")
"""The first of them that there is: the kernel has the peak since 5.19."""


class CgroupMemory:
    """The memory of one container, whose cgroup (v2) is at ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.kills = 0
        """Processes that the kernel has killed at a limit of the cgroup, those in cgroups below it as well."""
        self.peak_bytes = 0
        """The highest use at any look, the files that the kernel keeps in memory included."""

    @classmethod
    def of(cls, pid: int, *, proc: Path = PROC, root: Path = ROOT) -> Self | None:
        """The cgroup that a process is in; None when it has ended, or has no memory controller that we could read."""
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            if line.startswith("0::/"):
                directory = root / line.removeprefix("0::/")
                return cls(directory) if (directory / _EVENTS).is_file() else None
        return None

    def read(self) -> None:
        """Read the counters.  They stay what they were once the cgroup is gone."""
        with suppress(OSError, ValueError):
            for line in (self._directory / _EVENTS).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    self.kills = max(self.kills, int(count))
        for name in _USED:
            with suppress(OSError, ValueError):
                self.peak_bytes = max(self.peak_bytes, int((self._directory / name).read_text()))
                return

    def near(self, limit_bytes: int) -> bool:
        """Whether the use has come so near to a limit that what was killed was killed there, and not for want of
        memory on the whole machine."""
        return self.peak_bytes >= NEAR * limit_bytes

    async def killed(self, limit_bytes: int) -> None:
        """Until the kernel has killed a process at this limit.  It may be that it never does: cancel it then.

        Raises OSError when the cgroup cannot be watched.
        """
        with Inotify() as inotify:
            inotify.add_watch(self._directory / _EVENTS, Mask.MODIFY)
            await asyncio.to_thread(self.read)
            while not (self.kills and self.near(limit_bytes)):
                await inotify.get()
                await asyncio.to_thread(self.read)
