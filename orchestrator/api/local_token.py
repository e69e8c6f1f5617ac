"""The local owner's token: a file that only the service's own operating-system user can read.

Whoever can read it can read and change everything of the service anyway, so it proves the role ``admin`` and the right
to name paths, and the command works with no set-up.
"""

import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.config.models import Paths
from orchestrator.errors import StorageError
from orchestrator.system.files import UntrustedFileError, create_private, read_private

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
            with suppress(FileExistsError):  # another process was first; its token is the one
                create_private(target, (LOCAL_PREFIX + secrets.token_urlsafe(32)).encode() + b"\n")
            return _read(target)
    except OSError as error:
        raise StorageError(f"the local token file {target} cannot be used: {error.strerror}") from error


def _read(target: Path) -> str:
    try:
        text = read_private(target, limit=128).decode("ascii", errors="replace").strip()
    except UntrustedFileError as error:
        raise _refused(target, str(error)) from error
    if not _FORM.fullmatch(text):
        raise _refused(target, "it does not hold a token")
    return text


def _refused(target: Path, why: str) -> StorageError:
    return StorageError(
        f"the local token file {target} is not to be trusted: {why}. Look at how it came there, then remove it and"
        " restart the service; a new one is made."
    )
