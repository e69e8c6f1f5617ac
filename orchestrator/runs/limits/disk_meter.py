"""How much a run has on disk: its home, and what its workspace has beyond the repo.

A walk over the files is exact and takes time.  Between two walks the file system itself gives a bound: a run cannot
have gained more than the file system has lost.  So there is a walk when that bound reaches what matters, and from time
to time in any case, since others may have freed what this run has gained; how often depends on what a walk takes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.contract.sandbox import WORKSPACE_DIR, WorkspaceMount
from orchestrator.runs.limits.file_usage import ENTRY_BYTES, OpenFiles, Walk, Walked, open_files
from orchestrator.runs.limits.userns_probe import look_inside

SUSPICION: Final = 10
"""A walk that the bound asks for begins no sooner than after so many times what the last one took."""
ROUTINE: Final = 50
"""The same for a walk without a cause: 2 % of the time."""
ROUTINE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class DiskPlaces:
    """What counts.  ``whole``: all of it; ``grown``: what it has gained since the run began."""

    whole: tuple[Path, ...]
    grown: Path | None = None

    @classmethod
    def of(cls, mount: WorkspaceMount, home: Path) -> DiskPlaces:
        """The places that an agent can write to.

        Of an overlay that is the upper directory (a private copy of the repo lies beneath it and cannot grow).  A repo
        that the agent works on directly was there before it, so only its growth counts.
        """
        match mount.mode:
            case "overlay":
                return cls((home,) if mount.upper is None else (home, mount.upper))
            case "direct":
                return cls((home,), grown=mount.source)
            case "readonly":
                return cls((home,))

    @property
    def all(self) -> tuple[Path, ...]:
        """Every place, however it counts."""
        return self.whole if self.grown is None else (*self.whole, self.grown)


@dataclass(frozen=True, slots=True)
class Inside:
    """A running container: its first process, and all of them."""

    init_pid: int
    pids: Callable[[], list[int]]


class DiskMeter:
    """Measures one run.  Every method but ``stop`` blocks; they wait for one another.

    ``baseline``: what ``places.grown`` had when the run began; None: what it has at the first measure.
    """

    def __init__(
        self,
        places: DiskPlaces,
        *,
        limit_bytes: int,
        baseline: int | None = None,
        proc: str = "/proc",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._limit = limit_bytes
        self.baseline = baseline
        self._proc = proc
        self._clock = clock
        self._free: dict[int, tuple[int, int]] = {}
        self._walked_at: float | None = None
        self._cost = 0.0
        self._closed = False
        """Something could not be looked into from outside."""
        self._been_inside = False
        self._stopped = False
        self._lock = threading.Lock()
        self.used = 0
        """Bytes at the last walk."""
        self.peak_bytes = 0
        self.walks = 0

    def stop(self) -> None:
        """Break off what is under way; from another thread."""
        self._stopped = True

    def first(self) -> int:
        """Bytes in use before the container is there."""
        with self._lock:
            return self._measure(None)

    def tick(self, mark: int, inside: Inside) -> int | None:
        """Bytes in use when there was a cause to walk; None when no more than ``mark`` can be in use, or it is too
        early to look again.  Somewhat more than the limit stands for anything above it."""
        with self._lock:
            lost = self._lost()
            if self._walked_at is not None and not (self._closed and not self._been_inside):
                idle = self._clock() - self._walked_at
                suspicious = self.used + lost > mark and idle >= SUSPICION * self._cost
                if not suspicious and idle < max(ROUTINE_SECONDS, ROUTINE * self._cost):
                    return None
            return self._measure(inside)

    def final(self) -> None:
        """For the peak: the container has ended, and it may have written since the last walk."""
        with self._lock:
            if self._walked_at is None or (self._lost() > 0 and not self._closed):
                self._measure(None)

    def _measure(self, inside: Inside | None) -> int:
        began = self._clock()
        self._free = self._free_now()
        pids = inside.pids() if inside is not None else []
        walks, files = self._from_outside(pids, inside)
        self._closed = files.closed or any(walk.closed for walk in walks)
        self._been_inside = inside is not None
        if self._closed and inside is not None and inside.init_pid in pids:
            found = look_inside(
                inside.init_pid,
                walks=self._wanted(),
                proc=self._proc,
                pids=pids,
                devices=self._devices(inside),
                stopped=lambda: self._stopped,
            )
            walks, files = found or (walks, files)
        self._cost = self._clock() - began
        self._walked_at = self._clock()
        self.walks += 1
        if self._stopped:
            return self.used
        grown = 0
        if self._places.grown is not None:
            if self.baseline is None:
                self.baseline = walks[1].bytes
            grown = max(0, walks[1].bytes - self.baseline)
        self.used = walks[0].bytes + grown + files.deleted
        self.peak_bytes = max(self.peak_bytes, self.used)
        return self.used

    def _wanted(self) -> list[tuple[list[bytes], int | None]]:
        """Roots of each walk, and above which sum it may end."""
        wanted: list[tuple[list[bytes], int | None]] = [
            ([os.fsencode(path) for path in self._places.whole], self._limit)
        ]
        if self._places.grown is not None:
            stop = None if self.baseline is None else self.baseline + self._limit
            wanted.append(([os.fsencode(self._places.grown)], stop))
        return wanted

    def _from_outside(self, pids: Sequence[int], inside: Inside | None) -> tuple[list[Walked], OpenFiles]:
        walks = []
        for roots, stop_above in self._wanted():
            walk = Walk(stop_above=stop_above, stopped=lambda: self._stopped)
            for root in roots:
                walk.add(root)
            walks.append(walk.result)
        files = open_files(self._proc, pids, self._devices(inside)) if inside is not None else OpenFiles()
        return walks, files

    def _devices(self, inside: Inside | None) -> list[int]:
        """Where deleted files count: the file systems of the places, and the overlay that shows them inside."""
        names = [str(path) for path in self._places.all]
        if inside is not None:
            names.append(f"{self._proc}/{inside.init_pid}/root{WORKSPACE_DIR}")
        found = []
        for name in names:
            with suppress(OSError):
                found.append(os.stat(name).st_dev)  # noqa: PTH116
        return found

    def _free_now(self) -> dict[int, tuple[int, int]]:
        """By device: free bytes and inodes."""
        found: dict[int, tuple[int, int]] = {}
        for path in self._places.all:
            with suppress(OSError):
                state = os.statvfs(path)
                found[os.stat(path).st_dev] = (state.f_bfree * state.f_frsize, state.f_ffree)  # noqa: PTH116
        return found

    def _lost(self) -> int:
        """Bytes that the file systems have lost since the last walk began; an inode counts as an entry does."""
        lost = 0
        for device, (size, inodes) in self._free_now().items():
            before = self._free.get(device, (size, inodes))
            lost += max(0, before[0] - size) + max(0, before[1] - inodes) * ENTRY_BYTES
        return lost
