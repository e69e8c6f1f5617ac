"""What a container holds: files in its directories, files that are deleted but still open, files without a name.

Also a program of its own (so it imports nothing of ours): run inside the container's user namespace it may look where
the service's user may not, into directories that the agent has closed to everybody, and at processes that have made
themselves undumpable.  ``closed`` says that this is needed.

Sizes are allocated blocks, so a sparse file counts for what it really takes; a file with several names counts once; no
link is followed, no other file system is entered.  Each file, directory and link counts for at least ``ENTRY_BYTES``:
an empty file takes an inode and a name, and so the limit bounds the number of files too.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

ENTRY_BYTES = 4096
_LARGE = 1024**2
"""Files from this size on are remembered: one that is renamed while the walk is under way must not count twice."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_UP = 256
"""Entries between two looks whether the walk is still wanted."""


def counted(st: os.stat_result) -> int:
    """Bytes that one entry counts for."""
    return max(st.st_blocks * 512, ENTRY_BYTES)


@dataclass(slots=True)
class Walked:
    """One walk.  ``closed``: some directory could not be looked into.  ``whole``: it was not broken off."""

    bytes: int = 0
    entries: int = 0
    closed: bool = False
    whole: bool = True


@dataclass(slots=True)
class _Level:
    """A directory that the walk is in: how it was reached, and what is still to be entered."""

    name: bytes
    identity: tuple[int, int]
    todo: list[bytes]


class Walk:
    """Adds up the trees below some roots.

    Depth costs no descriptors and no path is ever longer than a name, so neither a deep tree nor odd names stop it.
    Directories that move or vanish under it are left; one that comes up again is not counted again.  A tree that grows
    faster than it is walked ends the walk when more than ``stop_above`` bytes have been counted.
    """

    def __init__(self, *, stop_above: int | None = None, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stop_above = stop_above
        self._stopped = stopped
        self._seen: set[tuple[int, int]] = set()
        self.result = Walked()

    def add(self, root: bytes) -> None:
        """Count ``root`` and all below it; one that does not exist counts nothing."""
        if not self.result.whole:
            return
        try:
            fd = os.open(root, _DIRECTORY)
        except FileNotFoundError:
            return
        except OSError:
            self.result.closed = True
            return
        self._tree(root, fd)

    def _tree(self, root: bytes, fd: int) -> None:
        """The whole tree of the open ``root``; closes ``fd``."""
        try:
            st = os.fstat(fd)
            if not self._new(st):
                return
            self._count(st)
            levels = [_Level(root, _identity(st), self._entries(fd, st.st_dev))]
            while levels and self.result.whole:
                if levels[-1].todo:
                    name = levels[-1].todo.pop()
                    if (child := self._enter(fd, name, st.st_dev)) is None:
                        continue
                    os.close(fd)
                    fd = child
                    levels.append(_Level(name, _identity(os.fstat(fd)), self._entries(fd, st.st_dev)))
                    continue
                levels.pop()
                if levels:
                    if (parent := self._back(fd, levels)) is None:
                        return  # the root itself has vanished
                    os.close(fd)
                    fd = parent
        finally:
            os.close(fd)

    def _entries(self, fd: int, device: int) -> list[bytes]:
        """Count what is in a directory; the directories that are to be entered."""
        inner: list[bytes] = []
        try:
            with os.scandir(fd) as entries:
                for number, entry in enumerate(entries):
                    if number % _LOOK_UP == 0 and self._enough():
                        self.result.whole = False
                        break
                    try:
                        st = entry.stat(follow_symlinks=False)
                    except PermissionError:  # a directory that may be listed, not searched
                        self.result.closed = True
                        continue
                    except OSError:
                        continue  # it has vanished
                    if st.st_dev != device or not self._new(st):
                        continue
                    self._count(st)
                    if stat.S_ISDIR(st.st_mode):
                        inner.append(os.fsencode(entry.name))
        except OSError:
            self.result.closed = True
        return inner

    def _enter(self, fd: int, name: bytes, device: int) -> int | None:
        try:
            child = os.open(name, _DIRECTORY, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            self.result.closed = True
            return None
        if os.fstat(child).st_dev != device:
            os.close(child)
            return None
        return child

    def _back(self, fd: int, levels: list[_Level]) -> int | None:
        """The directory of the last level, from the one below it.

        When it was moved meanwhile: as far down from the root as the known way still leads, and ``levels`` is cut to
        that.  None: not even the root is there.
        """
        with suppress(OSError):
            parent = os.open(b"..", _DIRECTORY, dir_fd=fd)
            if _identity(os.fstat(parent)) == levels[-1].identity:
                return parent
            os.close(parent)
        here: int | None = None
        for depth, level in enumerate(levels):
            try:
                inner = os.open(level.name, _DIRECTORY, dir_fd=here)
            except OSError:
                inner = -1
            if inner >= 0 and _identity(os.fstat(inner)) != level.identity:
                os.close(inner)
                inner = -1
            if inner < 0:
                del levels[depth:]
                break
            if here is not None:
                os.close(here)
            here = inner
        return here

    def _new(self, st: os.stat_result) -> bool:
        """Whether it is to be counted: not when it may have been already."""
        if stat.S_ISDIR(st.st_mode) or st.st_nlink > 1 or st.st_blocks * 512 >= _LARGE:
            if _identity(st) in self._seen:
                return False
            self._seen.add(_identity(st))
        return True

    def _count(self, st: os.stat_result) -> None:
        self.result.bytes += counted(st)
        self.result.entries += 1

    def _enough(self) -> bool:
        return self._stopped() or (self._stop_above is not None and self.result.bytes > self._stop_above)


def _identity(st: os.stat_result) -> tuple[int, int]:
    return st.st_dev, st.st_ino


@dataclass(slots=True)
class OpenFiles:
    """Files that no directory has any more but some process has open.  ``closed``: some process hides its files."""

    deleted: int = 0
    """Bytes on the given devices."""
    nameless: int = 0
    """Bytes of memory in memfds."""
    nameless_at: list[int] = field(default_factory=list)
    """Their inode numbers."""
    closed: bool = False


def open_files(proc: str, pids: Iterable[int], devices: Sequence[int]) -> OpenFiles:
    """Look at all descriptors of some processes; each file counts once."""
    result = OpenFiles()
    seen: set[tuple[int, int]] = set()
    for pid in pids:
        directory = f"{proc}/{pid}/fd"
        try:
            names = os.listdir(directory)  # noqa: PTH208  # for hundreds of processes
        except PermissionError:
            result.closed = True
            continue
        except OSError:
            continue  # it has ended
        for name in names:
            path = f"{directory}/{name}"
            try:
                st = os.stat(path)  # noqa: PTH116
                if st.st_nlink or not stat.S_ISREG(st.st_mode) or _identity(st) in seen:
                    continue
                seen.add(_identity(st))
                if st.st_dev in devices:
                    result.deleted += counted(st)
                elif os.readlink(path).startswith("/memfd:"):  # noqa: PTH115
                    result.nameless += st.st_blocks * 512
                    result.nameless_at.append(st.st_ino)
            except OSError:
                continue
    return result


def main() -> None:
    """Read ``{walks: [{roots, stop_above}], proc, pids, devices}`` from stdin, write ``{walks, files}``: JSON, paths in
    hex."""
    asked = json.load(sys.stdin)
    walks = []
    for wanted in asked["walks"]:
        walk = Walk(stop_above=wanted["stop_above"])
        for root in wanted["roots"]:
            walk.add(bytes.fromhex(root))
        walks.append(asdict(walk.result))
    files = open_files(asked["proc"], asked["pids"], asked["devices"])
    json.dump({"walks": walks, "files": asdict(files)}, sys.stdout)


if __name__ == "__main__":
    main()
