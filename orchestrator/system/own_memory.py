"""Keeps what a process of ours has in memory from other processes of its user, the agents' among them."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


def close_own_memory() -> None:
    """No core dumps, and /proc/<pid>/{mem,environ,fd} and ptrace closed to all but root (prctl(2), PR_SET_DUMPABLE).

    Holds for this process only: a program that it starts is as any other.  Raises: OSError when the kernel refuses; a
    process that keeps secrets must not go on then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prctl(_PR_SET_DUMPABLE, 0)
    if is_dumpable():
        raise OSError("the process stayed dumpable")


def is_dumpable() -> bool:
    """Whether this process may be dumped and read by others of its user."""
    return _prctl(_PR_GET_DUMPABLE, 0) != 0


def _prctl(option: int, value: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    result: int = libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), unused, unused, unused)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
