"""Lock files: one process at a time, and the kernel gives the lock back however its holder ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Lock the file ``path`` (made with mode 0600 when it is not there); None when somebody else has it locked.

    A file that was removed before it was locked does not count: then it is the one that is there now.
    The lock lasts as long as the returned descriptor, which the caller closes, or this process.  It does not wait:
    ``flock`` has no wait with a limit that a cancellation could interrupt.  Raises OSError.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        os.close(descriptor)
