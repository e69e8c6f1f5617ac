"""Looking for what should not be there: processes, files.  Everything here blocks: call it in a thread."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 20


def processes_with(text: str) -> list[int]:
    """Pids whose command line (words divided by NUL) has ``text``."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def files_with(roots: Iterable[Path], text: str) -> list[str]:
    """The files below ``roots`` that hold ``text``; those that may not be read hold nothing that we have written."""
    needle = text.encode()
    found: list[str] = []
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory) / name
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink() and _holds(path, needle):
                        found.append(str(path))
    return found


def _holds(path: Path, needle: bytes) -> bool:
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if needle in rest + chunk:
                return True
            rest = chunk[-len(needle) :]
    return False


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
