"""Files that are there whole or not at all, and files that nobody but their owner can have written.

Everything blocks.  For what lies below a directory that an agent can write to, see ``nofollow``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO in the file's place must not hold the reader up.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UntrustedFileError(Exception):
    """The file may not be what we wrote; the text is the reason, to follow a colon: ``it is a symbolic link``."""


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put ``data`` at ``path``, mode 0600, in the place of what is there: a reader sees the old content or the new.

    ``durable``: the content is on the disk before it takes its place.  Raises OSError; nothing is left behind then.
    """
    with _draft(path, data, durable=durable) as draft:
        draft.replace(path)


def create_private(path: Path, data: bytes) -> None:
    """Make the file ``path``, mode 0600 whatever the umask says, never over another; on the disk when this returns.

    Raises FileExistsError, OSError.
    """
    with _draft(path, data, durable=True) as draft:
        os.link(draft, path, follow_symlinks=False)
    sync_directory(path.parent)


def read_private(path: Path, *, limit: int) -> bytes:
    """At most ``limit`` bytes of a regular file that is ours and closed to everybody else.

    Raises UntrustedFileError, and OSError (FileNotFoundError when there is none).
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if path.is_symlink():
            raise UntrustedFileError("it is a symbolic link") from error
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFileError("it is no regular file")
        if found.st_uid != os.geteuid():
            raise UntrustedFileError(f"it belongs to uid {found.st_uid}, not to uid {os.geteuid()} who asks")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise UntrustedFileError(f"others can get at it (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 {path}")
        return os.read(handle, limit)  # of a regular file one call reads all that there is
    finally:
        os.close(handle)


def sync_directory(path: Path) -> None:
    """Flush a directory: names that were made, changed or removed in it are on the disk only then.  Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _draft(path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    """The content under another name in the same directory; that name is gone at the end."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    handle = os.open(draft, _NEW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(handle)
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
