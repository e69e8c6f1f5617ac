"""What is at a path: read, compared and written without ever following a symbolic link.

Every step goes by directory descriptor from an opened root, so that no path leads out of it whatever is swapped in
meanwhile.  Content is streamed; nothing here depends on the size of a file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from orchestrator.system import nofollow

Kind: TypeAlias = Literal["file", "symlink", "directory", "other"]
DIR_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1024**2
_FICLONE: Final = 0x40049409


class Key(NamedTuple):
    """What counts when two states are compared."""

    kind: Kind
    executable: bool
    digest: str
    """SHA-256 of the content, or of a symlink's target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An entry; ``stamp`` changes whenever the entry is changed or replaced."""

    key: Key
    mode: int
    uid: int
    gid: int
    size: int
    stamp: tuple[int, ...]


class Root:
    """A directory, opened; paths are bytes relative to it.  Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The directory that holds ``path``, and the last name.

        Raises FileNotFoundError, and NotADirectoryError where something else (a symlink) is in the place of a
        directory.
        """
        *parents, name = path.split(b"/")
        with nofollow.opened(self._fd, [os.fsdecode(part) for part in parents]) as fd:
            yield fd, name

    def state(self, path: bytes) -> State | None:
        """What is at ``path``; None: nothing (also where a parent is missing or no directory)."""
        try:
            with self.parent(path) as (fd, name):
                return state_at(fd, name)
        except (FileNotFoundError, NotADirectoryError):
            return None


def state_at(directory: int, name: bytes) -> State | None:
    """What is at ``name`` in an opened directory.  Raises OSError when it cannot be read."""
    try:
        st = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(st.st_mode):
            key = Key(
                "symlink", executable=False, digest=hashlib.sha256(os.readlink(name, dir_fd=directory)).hexdigest()
            )
        elif stat.S_ISREG(st.st_mode):
            fd = os.open(name, READ_FLAGS, dir_fd=directory)
            try:
                st = os.fstat(fd)
                key = Key("file", bool(st.st_mode & stat.S_IXUSR), digest_of(fd))
            finally:
                os.close(fd)
        else:
            key = Key("directory" if stat.S_ISDIR(st.st_mode) else "other", executable=False, digest="")
    except FileNotFoundError:
        return None
    return State(
        key=key, mode=stat.S_IMODE(st.st_mode), uid=st.st_uid, gid=st.st_gid, size=st.st_size, stamp=stamp_of(st)
    )


def stamp_of(st: os.stat_result) -> tuple[int, ...]:
    """Changes whenever the entry is written, replaced, or its mode or owner is changed."""
    return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode)


def current_stamp(directory: int, name: bytes) -> tuple[int, ...] | None:
    """The stamp of what is there now; None: nothing."""
    try:
        return stamp_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None


def digest_of(fd: int) -> str:
    """SHA-256 of an opened file."""
    digest = hashlib.sha256()
    while chunk := os.read(fd, _CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def copy_file(source: int, target_dir: int, name: bytes, mode: int, *, flush: bool = True) -> str:
    """Copy an opened file into a new one, by reference where the file system can; its SHA-256.

    ``flush``: it is on the disk when this returns; who copies very many calls ``sync_file_system`` once instead.
    """
    target = os.open(name, _NEW_FLAGS, 0o600, dir_fd=target_dir)
    try:
        try:
            fcntl.ioctl(target, _FICLONE, source)
            digest = digest_of(source)
        except OSError:
            digest = _copy_bytes(source, target)
        os.fchmod(target, mode)
        if flush:
            os.fsync(target)
    finally:
        os.close(target)
    return digest


def _copy_bytes(source: int, target: int) -> str:
    digest = hashlib.sha256()
    while chunk := os.read(source, _CHUNK):
        digest.update(chunk)
        write_all(target, chunk)
    return digest.hexdigest()


def write_all(fd: int, data: bytes) -> None:
    """``os.write`` until all of it is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_new(directory: int, name: bytes, data: bytes, mode: int) -> None:
    """A new file with ``data``, flushed to disk."""
    fd = os.open(name, _NEW_FLAGS, 0o600, dir_fd=directory)
    try:
        write_all(fd, data)
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Put a file of ours (0600) at ``path``: whole or not at all, and on the disk when this returns."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    directory = os.open(path.parent, DIR_FLAGS)
    try:
        write_new(directory, os.fsencode(part.name), data, 0o600)
    finally:
        os.close(directory)
    part.replace(path)


@contextmanager
def opened(directory: int, name: bytes) -> Iterator[int]:
    """A regular file for reading.  Raises OSError, also for anything else than a regular file."""
    fd = os.open(name, READ_FLAGS, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield fd
    finally:
        os.close(fd)


def entries(directory: int) -> list[bytes]:
    """The names in an opened directory."""
    return [os.fsencode(name) for name in os.listdir(directory)]  # a descriptor


def sync_file_system(fd: int) -> None:
    """Flush all of the file system that an opened file or directory is on.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(ctypes.c_int(fd)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_directory(fd: int) -> None:
    """Flush a directory's entries; file systems that cannot are left alone."""
    with suppress(OSError):
        os.fsync(fd)
