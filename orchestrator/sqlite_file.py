"""The database's file, made for its owner alone.

SQLite itself would make it readable for others.  A file that is there must not be opened beside SQLite: closing any
descriptor of it takes away every lock that this process has on it, after which another process takes itself for the
last user, folds the write-ahead log away, and what is written here from then on is lost.
"""

from __future__ import annotations

import os
from pathlib import Path


def ensure_private_file(path: Path) -> None:
    """Make the file (0600), and its directory (0700), unless they are there.  Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
