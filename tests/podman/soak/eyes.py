"""Looks at /proc: which runs have a process that lives.  Podman is not asked, for it may be what does not answer."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.system.tasks import TaskOwner

PROC = Path("/proc")
EVERY_SECONDS = 0.1


@dataclass
class Life:
    """The processes of one run, by monotonic time.  A run that was started anew has several namespaces."""

    first_alive: float
    last_alive: float
    gone: float | None = None
    """The first look at which none was there; None: there is one now."""


@dataclass
class Eyes:
    """``lives`` by run id.  ``runtime_dir``: its control directories tell whose a pid namespace is."""

    runtime_dir: Path
    lives: dict[str, Life] = field(default_factory=dict)
    longest_gap: float = 0.0
    """Between two looks: how coarse the times are."""

    def __post_init__(self) -> None:
        self._tasks = TaskOwner("eyes")
        self._own = Path("/proc/self/ns/pid").stat().st_ino
        self._mark = re.compile(re.escape(f"/{self.runtime_dir.name}/") + "([0-9a-f]{32})(?: |/|$)", re.MULTILINE)
        self._looked = 0.0
        self._lock = asyncio.Lock()

    def open(self) -> None:
        self._tasks.spawn(self._watch(), name="watch")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(EVERY_SECONDS)

    async def look(self) -> dict[str, list[int]]:
        """The living processes of all runs, now."""
        async with self._lock:
            began = time.monotonic()
            alive = await asyncio.to_thread(self.scan)
            if self._looked:
                self.longest_gap = max(self.longest_gap, began - self._looked)
            self._looked = began
            for run_id in alive:
                life = self.lives.setdefault(run_id, Life(began, began))
                life.last_alive, life.gone = began, None
            for run_id, life in self.lives.items():
                if run_id not in alive and life.gone is None:
                    life.gone = time.monotonic()
            return alive

    def scan(self) -> dict[str, list[int]]:
        """The same, blocking, and not remembered."""
        alive: dict[str, list[int]] = {}
        # For this one look only: the kernel gives the number of a namespace that is gone to the next new one.
        known: dict[int, str] = {}
        for name in os.listdir(PROC):  # noqa: PTH208 -- ten times a second
            if not name.isdigit():
                continue
            try:
                inode = os.stat(f"/proc/{name}/ns/pid").st_ino  # noqa: PTH116
                if inode == self._own:
                    continue
                if inode not in known:
                    if (found := self._mark.search(Path(f"/proc/{name}/mountinfo").read_text())) is None:
                        continue
                    known[inode] = found.group(1)
                if not _is_zombie(name):
                    alive.setdefault(known[inode], []).append(int(name))
            except OSError:
                continue
        return alive


def _is_zombie(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] in "ZX"
