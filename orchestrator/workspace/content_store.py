"""Contents of files by their SHA-256, each kept once: under the snapshots, and under the record of bases.

A content is at its name only when it is on the disk: new ones have another name until ``commit``.  So whatever a crash
leaves, what has a content's name is that content.  Where the file system can share blocks, nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from orchestrator.workspace.path_states import (
    DIR_FLAGS,
    copy_file,
    entries,
    opened,
    sync_directory,
    sync_file_system,
)

_NEW: Final = b"new-"


class ContentStore:
    """One directory of contents; it is made when it is entered.  Use as a context manager to add to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1
        self._committed: set[str] = set()
        self._new: set[str] = set()

    def __enter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._directory, DIR_FLAGS)
        self._committed = {os.fsdecode(name) for name in entries(self._fd) if not name.startswith(_NEW)}
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def __contains__(self, digest: str) -> bool:
        return digest in self._committed or digest in self._new

    def add(self, source: int) -> str:
        """Take up an opened file; its SHA-256.  Not on the disk before ``commit``.  Raises OSError."""
        part = _NEW + b"part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self._fd)
        digest = copy_file(source, self._fd, part, 0o600, flush=False)
        if digest in self:
            os.unlink(part, dir_fd=self._fd)
        else:
            os.rename(part, _NEW + digest.encode(), src_dir_fd=self._fd, dst_dir_fd=self._fd)
            self._new.add(digest)
        return digest

    def commit(self) -> None:
        """Put what was added on the disk, all at once: to flush each of 50,000 files takes minutes.  Raises OSError."""
        if not self._new:
            return
        sync_file_system(self._fd)
        for digest in self._new:
            os.rename(_NEW + digest.encode(), digest, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        sync_directory(self._fd)
        self._committed |= self._new
        self._new.clear()

    def path(self, digest: str) -> Path:
        """Where a content is."""
        return self._directory / digest

    @contextmanager
    def content(self, digest: str) -> Iterator[int]:
        """A content for reading.  Raises OSError."""
        directory = os.open(self._directory, DIR_FLAGS)
        try:
            with opened(directory, digest.encode()) as fd:
                yield fd
        finally:
            os.close(directory)

    def keep(self, wanted: Collection[str]) -> None:
        """Remove all but these, and what a crash has left."""
        if not self._directory.is_dir():
            return
        for path in self._directory.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)
