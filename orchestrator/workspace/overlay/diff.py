"""Compares an overlay's upper directory with the repo beneath it: which paths differ, and their two sides.

Only the upper is walked, and of the repo what it hides, so the cost follows what was changed and not the repo's size.
The agent owns everything in the upper and may still be running: every step goes by directory descriptor and never
through a symbolic link, what vanishes meanwhile is passed over, what cannot be read is reported and not left out.

How the kernel marks things (rootless, hence ``userxattr``): a deleted name is a character device 0:0; a directory that
replaces one of the repo carries the attribute ``overlay.opaque`` = ``y``.  (``x`` there is a hint about lower layers
and makes nothing opaque; whiteouts in the form of attributes are never written by the kernel.)  Renamed directories and
metadata-only copies do not occur: the kernel turns both off for ``userxattr``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.workspace.path_states import DIR_FLAGS, Root, opened

LARGE_BYTES = 5 * 1024**2
"""Content of larger files is not loaded: they count as binary."""
MAX_DEPTH = 128
"""Directories nested deeper are reported as a whole (each level costs two descriptors)."""
_CHUNK = 1024**2
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")

Kind: TypeAlias = Literal["file", "symlink", "closed", "other"]
Whiteout: TypeAlias = Callable[[os.stat_result], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a difference.  ``closed``: a directory that cannot be looked into.  ``other``: pipe, socket, device.

    ``data``: the file's bytes or the symlink's target; None when it is neither, too large, or unreadable.
    """

    kind: Kind
    mode: int
    """As git has it: 0o100644, 0o100755 or 0o120000; 0o040000 for ``closed``, 0 for ``other``."""
    size: int | None
    data: bytes | None


_CLOSED = Side(kind="closed", mode=0o040000, size=None, data=None)
_OTHER = Side(kind="other", mode=0, size=None, data=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One path (bytes, relative, ``/``-separated) and what was and is there; None: nothing."""

    path: bytes
    before: Side | None
    after: Side | None


def is_whiteout(st: os.stat_result) -> bool:
    """Whether this entry of an upper directory means "deleted"."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0


def differences(
    upper: Path, lower: Path, *, whiteout: Whiteout = is_whiteout, large: int = LARGE_BYTES
) -> Iterator[Difference]:
    """Every path whose kind, content or executable bit differs, directory by directory.

    Directories themselves are no differences (git knows none), and everything named ``.git`` is left out.  Content of
    files with more than ``large`` bytes is not loaded.  Raises OSError when one of the two cannot be opened.
    """
    above = os.open(upper, DIR_FLAGS)
    try:
        below = os.open(lower, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from _Walk(whiteout, large).merge(above, below, b"", 0)
        finally:
            os.close(below)
    finally:
        os.close(above)


def hiding(upper: Path, *, whiteout: Whiteout = is_whiteout) -> Iterator[bytes]:
    """The paths where nothing of the repo shows through, whatever it gets there: whiteouts and opaque directories.

    What is in such a directory is left out, and so are files, which hide what they are in the place of.  Raises OSError
    when the upper directory cannot be opened.
    """
    above = os.open(upper, DIR_FLAGS)
    try:
        yield from _hiding(above, b"", 0, whiteout)
    finally:
        os.close(above)


def _hiding(above: int, prefix: bytes, depth: int, whiteout: Whiteout) -> Iterator[bytes]:
    for name in _names(above):
        if (st := _stat(above, name)) is None:
            continue
        if whiteout(st):
            yield prefix + name
        elif stat.S_ISDIR(st.st_mode):
            with _opened(above, name, depth) as child:
                if child is None or is_opaque(child):
                    yield prefix + name
                else:
                    yield from _hiding(child, prefix + name + b"/", depth + 1, whiteout)


class _Walk:
    def __init__(self, whiteout: Whiteout, large: int) -> None:
        self._whiteout = whiteout
        self._large = large

    def merge(
        self, above: int, below: int | None, prefix: bytes, depth: int, *, opaque: bool = False
    ) -> Iterator[Difference]:
        """Differences in one directory of the upper (open as ``above``); ``below``: the repo's, when it has one.

        ``opaque``: nothing of the repo's shows through, since a directory above this one replaces the repo's.
        """
        opaque = opaque or (depth > 0 and is_opaque(above))
        names = _names(above)
        for name in names:
            if (now := _stat(above, name)) is None:
                continue
            was = _stat(below, name) if below is not None else None
            path = prefix + name
            if self._whiteout(now):
                if below is not None and was is not None:
                    yield from self._removed(below, name, was, path, depth)
            elif stat.S_ISDIR(now.st_mode):
                yield from self._directory(above, below, name, was, path, depth, opaque=opaque)
            else:
                yield from self._leaf(above, below, name, now, was, path, depth)
        if below is not None and opaque:
            present = set(names)
            for name in _names(below):
                if name not in present and (was := _stat(below, name)) is not None:
                    yield from self._removed(below, name, was, prefix + name, depth)

    def _directory(
        self,
        above: int,
        below: int | None,
        name: bytes,
        was: os.stat_result | None,
        path: bytes,
        depth: int,
        *,
        opaque: bool,
    ) -> Iterator[Difference]:
        merged = was is not None and stat.S_ISDIR(was.st_mode)
        if below is not None and was is not None and not merged:
            yield from self._removed(below, name, was, path, depth)
        with _opened(above, name, depth) as child:
            if child is None:
                yield Difference(path=path, before=_CLOSED if merged else None, after=_CLOSED)
                return
            if below is None or not merged:
                yield from self.merge(child, None, path + b"/", depth + 1)
                return
            with _opened(below, name, depth) as child_below:
                yield from self.merge(child, child_below, path + b"/", depth + 1, opaque=opaque)

    def _leaf(
        self,
        above: int,
        below: int | None,
        name: bytes,
        now: os.stat_result,
        was: os.stat_result | None,
        path: bytes,
        depth: int,
    ) -> Iterator[Difference]:
        if below is not None and was is not None and stat.S_ISDIR(was.st_mode):
            yield from self._removed(below, name, was, path, depth)
            was = None
        after = side_of(above, name, now, self._large)
        if after is None:
            return
        before = side_of(below, name, was, self._large) if below is not None and was is not None else None
        if before is None or not _same(above, below, name, before, after):
            yield Difference(path=path, before=before, after=after)

    def _removed(self, below: int, name: bytes, was: os.stat_result, path: bytes, depth: int) -> Iterator[Difference]:
        """The entry of the repo, and all beneath it, is gone."""
        if not stat.S_ISDIR(was.st_mode):
            if (before := side_of(below, name, was, self._large)) is not None:
                yield Difference(path=path, before=before, after=None)
            return
        with _opened(below, name, depth) as child:
            if child is None:
                yield Difference(path=path, before=_CLOSED, after=None)
                return
            for inner in _names(child):
                if (st := _stat(child, inner)) is not None:
                    yield from self._removed(child, inner, st, path + b"/" + inner, depth + 1)


def read_side(root: Path, path: bytes, large: int) -> Side | None:
    """What is at ``path`` below ``root``, found without following a symlink; None: nothing."""
    try:
        with Root(root) as opened_root, opened_root.parent(path) as (fd, name):
            return side_of(fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False), large)
    except OSError:
        return None


def read_regular(directory: int, name: bytes, limit: int) -> bytes | None:
    """The content of a regular file of at most ``limit`` bytes; None when it is something else or larger."""
    try:
        with opened(directory, name) as fd:
            data = _read(fd, limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _names(directory: int) -> list[bytes]:
    return sorted(name for entry in os.listdir(directory) if (name := os.fsencode(entry)) != b".git")


def _stat(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None


@contextmanager
def _opened(directory: int, name: bytes, depth: int) -> Iterator[int | None]:
    """The directory ``name``; None when it cannot be listed."""
    fd: int | None = None
    with suppress(OSError):
        fd = os.open(name, DIR_FLAGS, dir_fd=directory) if depth < MAX_DEPTH else None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def is_opaque(directory: int) -> bool:
    """Whether this directory of an upper (a descriptor) hides the repo's."""
    for attribute in _OPAQUE:
        with suppress(OSError):
            if os.getxattr(directory, attribute) == b"y":
                return True
    return False


def side_of(directory: int, name: bytes, st: os.stat_result, large: int) -> Side | None:
    """What is at ``name``; None when it has vanished since."""
    if stat.S_ISLNK(st.st_mode):
        try:
            target = os.readlink(name, dir_fd=directory)
        except OSError:
            return None
        return Side(kind="symlink", mode=0o120000, size=len(target), data=target)
    if not stat.S_ISREG(st.st_mode):
        return _OTHER
    mode = 0o100755 if st.st_mode & stat.S_IXUSR else 0o100644
    unread = Side(kind="file", mode=mode, size=st.st_size, data=None)
    if st.st_size > large:
        return unread
    try:
        with opened(directory, name) as fd:
            data = _read(fd, large + 1)
    except FileNotFoundError:
        return None
    except OSError:
        return unread
    if len(data) > large:
        return unread
    return Side(kind="file", mode=mode, size=len(data), data=data)


def _read(fd: int, limit: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < limit and (chunk := os.read(fd, min(_CHUNK, limit - len(chunks)))):
        chunks += chunk
    return bytes(chunks)


def _same(above: int, below: int | None, name: bytes, before: Side, after: Side) -> bool:
    """Whether a copied-up entry is still what it was."""
    if (before.kind, before.mode, before.size) != (after.kind, after.mode, after.size) or before.kind == "other":
        return False
    if before.data is not None or after.data is not None:
        return before.data == after.data
    if below is None:
        return False
    try:
        with opened(above, name) as one, opened(below, name) as other:
            while (chunk := _read(one, _CHUNK)) == _read(other, _CHUNK):
                if not chunk:
                    return True
    except OSError:
        return False
    return False
