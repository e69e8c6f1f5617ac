"""How long the path of a Unix socket may be.  Pure."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Final

SOCKET_PATH_MAX: Final = 107
"""Bytes: the kernel's field for it has 108, with the ending NUL."""


def socket_path_bytes(path: PurePath) -> int:
    """Length of a path as the kernel counts it."""
    return len(os.fsencode(path))
