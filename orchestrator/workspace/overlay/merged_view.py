"""Single files of a workspace as the agent sees them, read out of upper and lower directory without a mount."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from orchestrator.workspace.overlay.diff import Whiteout, is_opaque, read_regular
from orchestrator.workspace.path_states import DIR_FLAGS


class MergedView:
    """Never follows a symlink, never leaves the two directories.  Use as a context manager.

    Raises OSError when one of the two cannot be opened.
    """

    def __init__(self, upper: Path, lower: Path, whiteout: Whiteout) -> None:
        self._roots = (upper, lower)
        self._whiteout = whiteout
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            found = []
            for root in self._roots:
                fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                found.append(fd)
            self._above, self._below = found
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, path: bytes, limit: int) -> bytes | None:
        """The content of a regular file of at most ``limit`` bytes; None when there is none."""
        *parents, name = path.split(b"/")
        with ExitStack() as stack:
            above: int | None = self._above
            below: int | None = self._below
            for part in parents:
                above, below = self._enter(stack, above, below, part)
                if above is None and below is None:
                    return None
            if above is not None:
                st = _stat(above, name)
                if st is not None:
                    return None if self._whiteout(st) else read_regular(above, name, limit)
            return read_regular(below, name, limit) if below is not None else None

    def _enter(
        self, stack: ExitStack, above: int | None, below: int | None, part: bytes
    ) -> tuple[int | None, int | None]:
        st = _stat(above, part) if above is not None else None
        if st is not None and (self._whiteout(st) or not stat.S_ISDIR(st.st_mode)):
            return None, None
        next_above = _open(stack, above, part) if above is not None and st is not None else None
        if st is not None and (next_above is None or is_opaque(next_above)):
            return next_above, None
        return next_above, _open(stack, below, part) if below is not None else None


def _stat(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None


def _open(stack: ExitStack, directory: int, name: bytes) -> int | None:
    with suppress(OSError):
        fd = os.open(name, DIR_FLAGS, dir_fd=directory)
        stack.callback(os.close, fd)
        return fd
    return None
