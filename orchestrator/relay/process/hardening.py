"""Keeps other processes of the same user, the containers' among them, out of the relay's memory."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

PR_GET_DUMPABLE: Final = 3
PR_SET_DUMPABLE: Final = 4


def harden() -> None:
    """No core dumps, and /proc/<pid>/{mem,environ,fd} and ptrace closed to all but root; new files are ours alone.

    Raises: OSError when the kernel refuses; a relay must not take keys then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    _prctl(PR_SET_DUMPABLE, 0)
    if dumpable():
        raise OSError("the process stayed dumpable")


def dumpable() -> bool:
    """Whether this process may be dumped and read by others of its user."""
    return _prctl(PR_GET_DUMPABLE, 0) != 0


def _prctl(option: int, value: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    result: int = libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), unused, unused, unused)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
