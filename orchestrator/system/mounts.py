"""Mount tables, as the kernel shows them in ``/proc/<pid>/mountinfo`` (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of a mount table."""

    device: str
    """``major:minor`` of the file system, decimal."""
    root: str
    """Which directory of the file system is mounted; ``/``: all of it."""
    point: str
    """Where, with escapes undone."""
    options: frozenset[str]
    """Those of this mount (``rw``, ``nosuid``), not the file system's own."""
    kind: str
    """Type of the file system: ``ext4``, ``fuse.sshfs``."""


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in a table, in its order: of several on one point the last is on top.  Other lines are left out."""
    found = []
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 6 or not after:
            continue
        found.append(
            Mount(
                device=fields[2],
                root=_unescaped(fields[3]),
                point=_unescaped(fields[4]),
                options=frozenset(fields[5].split(",")),
                kind=after.split(" ")[0],
            )
        )
    return found


def read_mounts(pid: int | str = "self", *, proc: Path = Path("/proc")) -> list[Mount]:
    """The mounts that a process sees; bytes that are no UTF-8 are kept as ``os.fsdecode`` has them.  Raises OSError."""
    return parse_mounts((proc / str(pid) / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def mount_of(path: PurePath, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that ``path`` (absolute, without symbolic links) is on; None when the table has none for it."""
    best: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescaped(text: str) -> str:
    """Blanks and backslashes in names are written in octal: ``\\040``."""
    return _ESCAPED.sub(lambda code: chr(int(code[1], 8)), text)
