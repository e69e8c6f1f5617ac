"""Files below a directory, reached one path component at a time and never through a symbolic link.

A HOME belongs to the agent: whatever is in it may be a symlink to somewhere else, or may become one at any moment.  So
every component is opened relative to its parent with ``O_NOFOLLOW``, and what is read is what was opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH_MAX: Final = 64
"""How deep is looked: an agent can nest directories deeper than descriptors go, a CLI's own files are near the top."""


@contextmanager
def opened(base: Path | int, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """A descriptor of the directory ``parts`` below ``base`` (a path or a descriptor).

    ``make``: missing ones are made, mode 0700.  ``base`` may be reached through symlinks, but must not be one.  Raises
    OSError; ENOTDIR or ELOOP mean that a component is a symlink or a file.
    """
    fd = os.open(base, _DIRECTORY) if isinstance(base, Path) else os.open(".", _DIRECTORY, dir_fd=base)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=fd)
            below = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def has_regular_file(fd: int, depth: int = 0) -> bool:
    """Whether any regular file is below the directory; symlinks are neither followed nor counted."""
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                return True
            if depth < _DEPTH_MAX and entry.is_dir(follow_symlinks=False):
                # One that is closed to us, or gone meanwhile, has nothing for us.
                with contextlib.suppress(OSError), opened(fd, [entry.name]) as below:
                    if has_regular_file(below, depth + 1):
                        return True
    return False


def read_file(fd: int, path: str, *, limit: int) -> bytes | None:
    """The regular file at the relative ``path``; None when there is none such, or it is over ``limit`` bytes."""
    *parents, name = PurePosixPath(path).parts
    try:
        with opened(fd, parents) as directory:
            # O_NONBLOCK: a FIFO in the file's place must not hold us up.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(file, "rb") as stream:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            data = stream.read(limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def write_file(fd: int, path: str, data: bytes) -> None:
    """Put a file of ours (0600) at the relative ``path``: whole or not at all.

    What is in its way is removed, a symlink as a symlink.  Raises OSError.
    """
    *parents, name = PurePosixPath(path).parts
    for depth, parent in enumerate(parents):
        with opened(fd, parents[:depth]) as above:
            if _is_directory(above, parent) is False:
                os.unlink(parent, dir_fd=above)
    with opened(fd, parents, make=True) as directory:
        part = f".{name}.{uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(part, flags, 0o600, dir_fd=directory)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(file)
            if _is_directory(directory, name):
                remove_at(directory, name)
            os.rename(part, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=directory)
            raise


def remove_at(fd: int, name: str) -> None:
    """Remove ``name`` from the directory with all that is below it, symlinks as symlinks; fine when there is nothing.

    Subdirectories are moved up before they are emptied, so that no depth of nesting can exhaust anything.  Raises
    OSError when something in it is not ours to remove.
    """
    is_directory = _is_directory(fd, name)
    if is_directory is None:
        return
    if not is_directory:
        os.unlink(name, dir_fd=fd)
        return
    _open_up(fd, name)
    with opened(fd, [name]) as top:
        while entries := _names(top):
            for entry in entries:
                if not _is_directory(top, entry):
                    os.unlink(entry, dir_fd=top)
                    continue
                _open_up(top, entry)
                with opened(top, [entry]) as below:
                    for deeper in _names(below):
                        if _is_directory(below, deeper):
                            _open_up(below, deeper)  # else its ".." could not be changed
                            os.rename(deeper, uuid4().hex, src_dir_fd=below, dst_dir_fd=top)
                        else:
                            os.unlink(deeper, dir_fd=below)
                os.rmdir(entry, dir_fd=top)
    os.rmdir(name, dir_fd=fd)


def _names(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return [entry.name for entry in entries]


def _is_directory(fd: int, name: str) -> bool | None:
    """None: there is nothing of that name.  A symlink is no directory."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _open_up(fd: int, name: str) -> None:
    """Give us all rights on a directory that its agent may have closed."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)  # noqa: PTH101  # by descriptor: fchmod does not take O_PATH
    finally:
        os.close(path)
