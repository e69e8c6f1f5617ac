"""Takes changes out of an overlay's upper directory, so that the repo shows through again.

No container may have the overlay mounted.  The agent owns what is in there: every step goes by descriptor, follows no
link, and gives itself the permissions it needs on directories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from orchestrator.errors import ConflictError
from orchestrator.workspace.overlay.diff import Difference, Whiteout, is_opaque
from orchestrator.workspace.path_states import DIR_FLAGS, Root, copy_file, entries, opened, state_at

OPAQUE: Final = "user.overlay.opaque"


class UpperEditor:
    """Edits one upper directory above one lower directory."""

    def __init__(self, upper: Root, lower: Root, whiteout: Whiteout) -> None:
        self._upper = upper
        self._lower = lower
        self._whiteout = whiteout

    def revert(self, chosen: Iterable[Difference]) -> None:
        """Make these paths what the repo has.  Raises ConflictError when something not chosen is in the way."""
        chosen = list(chosen)
        for one in chosen:
            if one.after is not None:
                self._drop(one.path)
        for one in chosen:
            if one.before is not None:
                self._restore(one.path)

    def _drop(self, path: bytes) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._upper.parent(path) as (fd, name):
            _remove(fd, name)

    def _restore(self, path: bytes) -> None:
        """Let the repo's entry show through; where it cannot, put a copy of it into the upper."""
        parts = path.split(b"/")
        hidden = False
        for depth in range(1, len(parts)):
            place = b"/".join(parts[:depth])
            with self._upper.parent(place) as (fd, name):
                st = _stat(fd, name)
                if st is None:
                    if not hidden:
                        return  # there is nothing of the agent's above: the repo shows through
                    os.mkdir(name, 0o755, dir_fd=fd)
                elif self._whiteout(st):
                    os.unlink(name, dir_fd=fd)
                    os.mkdir(name, 0o755, dir_fd=fd)
                    _set_opaque(fd, name)
                    hidden = True
                elif not stat.S_ISDIR(st.st_mode):
                    raise ConflictError(
                        f"{os.fsdecode(path)!r} cannot come back while the agent has a file at {os.fsdecode(place)!r}: "
                        "name that one too"
                    )
                else:
                    with _directory(fd, name) as inner:
                        hidden = hidden or is_opaque(inner)
        with self._upper.parent(path) as (fd, name):
            if (st := _stat(fd, name)) is not None:
                if stat.S_ISDIR(st.st_mode) and not self._hollow(fd, name):
                    raise ConflictError(
                        f"{os.fsdecode(path)!r} cannot come back while the agent has files below it: name those too"
                    )
                _remove(fd, name)
            if hidden:
                self._copy_up(path, fd, name)

    def _hollow(self, directory: int, name: bytes) -> bool:
        """Whether a directory has nothing in it that the agent sees as a file."""
        with _directory(directory, name) as fd:
            for inner in entries(fd):
                st = os.stat(inner, dir_fd=fd, follow_symlinks=False)
                if not (self._hollow(fd, inner) if stat.S_ISDIR(st.st_mode) else self._whiteout(st)):
                    return False
        return True

    def _copy_up(self, path: bytes, fd: int, name: bytes) -> None:
        with self._lower.parent(path) as (below, last):
            st = os.stat(last, dir_fd=below, follow_symlinks=False)
            if stat.S_ISLNK(st.st_mode):
                os.symlink(os.readlink(last, dir_fd=below), name, dir_fd=fd)
            elif stat.S_ISREG(st.st_mode):
                with opened(below, last) as source:
                    copy_file(source, fd, name, stat.S_IMODE(st.st_mode) & 0o777)

    def tidy(self) -> None:
        """Remove what says nothing: entries that are what the repo has, so that they no longer hide it."""
        with self._upper.parent(b"x") as (above, _), self._lower.parent(b"x") as (below, _):
            self._tidy(above, below)

    def _tidy(self, above: int, below: int) -> None:
        """Both directories are merged here (nothing above hides the repo's)."""
        for name in entries(above):
            if name == b".git" or (now := _stat(above, name)) is None:
                continue
            was = _stat(below, name)
            if self._whiteout(now):
                if was is None:
                    os.unlink(name, dir_fd=above)
            elif stat.S_ISDIR(now.st_mode):
                if was is not None and stat.S_ISDIR(was.st_mode):
                    self._tidy_directory(above, below, name)
            elif was is not None and _same(above, below, name):
                os.unlink(name, dir_fd=above)

    def _tidy_directory(self, above: int, below: int, name: bytes) -> None:
        with _directory(above, name) as inner:
            try:
                inner_below = os.open(name, DIR_FLAGS, dir_fd=below)
            except OSError:
                return
            try:
                if is_opaque(inner) and not self._uncover(inner, inner_below):
                    return
                self._tidy(inner, inner_below)
                merged = not entries(inner)
            finally:
                os.close(inner_below)
        if merged:
            with suppress(OSError):
                os.rmdir(name, dir_fd=above)

    def _uncover(self, above: int, below: int) -> bool:
        """An opaque directory that has an entry for each of the repo's hides nothing: it need not be opaque."""
        names, lower = set(entries(above)), set(entries(below))
        if not lower <= names:
            return False
        for name in lower:
            st = _stat(above, name)
            if st is not None and stat.S_ISDIR(st.st_mode):
                _set_opaque(above, name)
        for attribute in (OPAQUE, "trusted.overlay.opaque"):
            with suppress(OSError):
                os.removexattr(above, attribute)
        return not is_opaque(above)


def _stat(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _same(above: int, below: int, name: bytes) -> bool:
    try:
        one, other = state_at(above, name), state_at(below, name)
    except OSError:
        return False
    return one is not None and other is not None and one.key.kind in {"file", "symlink"} and one.key == other.key


def _set_opaque(directory: int, name: bytes) -> None:
    with _directory(directory, name) as fd:
        os.setxattr(fd, OPAQUE, b"y")


@contextmanager
def _directory(directory: int, name: bytes) -> Iterator[int]:
    """A directory of the agent's; one that it has closed to us is opened up."""
    try:
        fd = os.open(name, DIR_FLAGS, dir_fd=directory)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101  # by descriptor
        finally:
            os.close(handle)
        fd = os.open(name, DIR_FLAGS, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _remove(directory: int, name: bytes) -> None:
    """An entry with all that is in it, without following links."""
    st = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(st.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    with _directory(directory, name) as fd:
        for inner in entries(fd):
            _remove(fd, inner)
    os.rmdir(name, dir_fd=directory)
