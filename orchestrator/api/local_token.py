"""The local owner's token: a file that only the service's own operating-system user can read.

Whoever can read it can read and change everything of the service anyway, so it proves the role ``admin`` and the right
to name paths, and the command works with no set-up.
"""

import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from orchestrator.config.models import Paths
from orchestrator.errors import StorageError

LOCAL_PREFIX: Final = "pml_"
_FORM = re.compile(r"pml_[A-Za-z0-9_-]{43}")


def ensure_local_token(paths: Paths) -> str:
    """The local token, made at the first call.

    Blocking (a few system calls).  Raises StorageError when the file is not one that only we can have written: a
    symbolic link, another owner's, readable by others, or with something else in it.
    """
    target = paths.token_file
    try:
        try:
            return _read(target)
        except FileNotFoundError:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(target)
            return _read(target)
    except OSError as error:
        raise StorageError(f"the local token file {target} cannot be used: {error.strerror}") from error


def _create(target: Path) -> None:
    """Put a complete file in place in one step: a reader sees all of it or nothing, and an existing one is kept."""
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # whatever the umask says
            file.write((LOCAL_PREFIX + secrets.token_urlsafe(32)).encode() + b"\n")
            file.flush()
            os.fsync(handle)
        try:
            os.link(draft, target, follow_symlinks=False)
        except FileExistsError:
            return  # another process was first; its token is the one
    finally:
        draft.unlink(missing_ok=True)


def _read(target: Path) -> str:
    # O_NOFOLLOW: the name itself must not be a link.  O_NONBLOCK: a FIFO in its place must not hang us.
    try:
        handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if target.is_symlink():
            raise _refused(target, "it is a symbolic link") from error
        raise
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(target, "it is not a regular file")
        if status.st_uid != os.geteuid():
            raise _refused(target, f"it belongs to uid {status.st_uid}, not to uid {os.geteuid()} who asks")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise _refused(target, f"its mode is {stat.S_IMODE(status.st_mode):04o}, it must be 0600")
        text = file.read(128).decode("ascii", errors="replace").strip()
    if not _FORM.fullmatch(text):
        raise _refused(target, "it does not hold a token")
    return text


def _refused(target: Path, why: str) -> StorageError:
    return StorageError(
        f"the local token file {target} is not to be trusted: {why}. Look at how it came there, then remove it and"
        " restart the service; a new one is made."
    )
