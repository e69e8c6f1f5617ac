"""Which deleted files came back under another name.  Pure.

The same content is a rename; so is text of which at least half of the lines, by their bytes, came along.  Work is
bounded: what is too large or too many is left as a deletion and an addition, which says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.workspace.changes.linediff import split_lines

COMPARED_BYTES = 1024**2
"""Larger files are renames only when nothing else about them changed."""
COMPARED_PAIRS = 10_000
LEAST_PERCENT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deleted or an added file.  ``lines``: bytes per line (by hash); None: not to be compared by lines."""

    path: bytes
    digest: bytes
    size: int
    lines: Counter[int] | None


def candidate(path: bytes, digest: bytes, data: bytes, *, text: bool) -> Candidate:
    """From a file's content."""
    lines: Counter[int] | None = None
    if text and len(data) <= COMPARED_BYTES:
        lines = Counter()
        for line in split_lines(data):
            lines[hash(line)] += len(line)
    return Candidate(path=path, digest=digest, size=len(data), lines=lines)


def find_renames(deleted: Sequence[Candidate], added: Sequence[Candidate]) -> dict[bytes, tuple[bytes, int]]:
    """New path to (old path, similarity in percent).  Empty files are never renames."""
    found: dict[bytes, tuple[bytes, int]] = {}
    left = {one.path: one for one in deleted if one.size}
    by_digest: dict[bytes, list[bytes]] = {}
    for one in left.values():
        by_digest.setdefault(one.digest, []).append(one.path)
    rest = []
    for new in added:
        same = [path for path in by_digest.get(new.digest, ()) if path in left]
        if same and new.size:
            old = next((path for path in same if _name(path) == _name(new.path)), same[0])
            found[new.path] = (old, 100)
            del left[old]
        elif new.size:
            rest.append(new)
    found |= _similar([one for one in left.values() if one.lines is not None], rest)
    return found


def _similar(deleted: list[Candidate], added: list[Candidate]) -> dict[bytes, tuple[bytes, int]]:
    added = [one for one in added if one.lines is not None]
    if len(deleted) * len(added) > COMPARED_PAIRS:
        return {}
    scored = []
    for new in added:
        for old in deleted:
            assert old.lines is not None
            assert new.lines is not None
            if 2 * min(old.size, new.size) < max(old.size, new.size):
                continue
            percent = 100 * (old.lines & new.lines).total() // max(old.size, new.size)
            if percent >= LEAST_PERCENT:
                scored.append((-percent, _name(old.path) != _name(new.path), old.path, new.path))
    found: dict[bytes, tuple[bytes, int]] = {}
    taken: set[bytes] = set()
    for minus_percent, _, old_path, new_path in sorted(scored):
        if old_path not in taken and new_path not in found:
            found[new_path] = (old_path, min(99, -minus_percent))
            taken.add(old_path)
    return found


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]
