"""The whole list of changes at one time: which paths, what became of them, what belongs together.

``Chosen`` says which of them a caller means.

git counts the lines of files that are on both sides, and finds the renames; it is not asked where there is neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple

from orchestrator.contract.changes import ChangeSelection, FileChange
from orchestrator.errors import InvalidRequestError
from orchestrator.workspace.changes.ignores import ignored_paths
from orchestrator.workspace.changes.tree_pair import ObjectWriter, Statistic, TreePair, is_bulky
from orchestrator.workspace.overlay.diff import LARGE_BYTES, Difference, Side, Whiteout, read_side
from orchestrator.workspace.sandboxed_git import installed, scratch

COMPARED_BYTES: Final = 1024**2
"""Larger files are renames only when nothing else about them changed."""
COMPARED_PAIRS: Final = 10_000
"""With more pairs of deleted and added files, only those with the same content are renames."""
_SNIFF: Final = 8000
"""git looks for a NUL in so many first bytes."""

Kind = Literal["added", "modified", "deleted", "renamed", "mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One change; ``origin``: where a renamed file was."""

    path: bytes
    change: FileChange
    origin: bytes | None = None

    @property
    def paths(self) -> list[bytes]:
        """The path of the change; of a rename both."""
        return [self.path, *([self.origin] if self.origin is not None else [])]


class _Candidate(NamedTuple):
    """A deleted or an added file that may be one side of a rename."""

    path: bytes
    digest: bytes
    size: int
    text: bool

    @property
    def comparable(self) -> bool:
        return self.text and self.size <= COMPARED_BYTES

    def has_similar_size(self, other: _Candidate) -> bool:
        return 2 * min(self.size, other.size) >= max(self.size, other.size)


def survey(found: Iterator[Difference], *, upper: Path, lower: Path, whiteout: Whiteout) -> list[Found]:
    """All changes, sorted by path.  Blocking.  Raises OSError, GitError, StorageError.

    Without git, files that are on both sides count as binary, and there are no renames.
    """
    listed: dict[bytes, FileChange] = {}
    deleted: list[_Candidate] = []
    added: list[_Candidate] = []
    with scratch(upper.parent) as place, closing(ObjectWriter(place)) as objects:
        pair, bulky = TreePair(objects), TreePair(objects)
        for difference in found:
            path, before, after = difference.path, difference.before, difference.after
            text = is_text(before) and is_text(after)
            if before and after and before.kind == after.kind and text and before.data != after.data:
                text = installed() is not None and objects.has_room(before, after)
                if text:
                    (bulky if is_bulky(before, after) else pair).add(path, before, after)
            listed[path] = _change(difference, binary=not text)
            if after is None and (one := _candidate(path, before)):
                deleted.append(one)
            elif before is None and (one := _candidate(path, after)):
                added.append(one)
        renames = _add_candidates(pair, objects, deleted, added, upper=upper, lower=lower)
        for statistic in chain(pair.statistics(renames=renames), bulky.statistics(renames=False)):
            _take(statistic, listed)
    origins = {os.fsencode(change.path): os.fsencode(change.old_path) for change in listed.values() if change.old_path}
    existing = [path for path, change in listed.items() if change.change != "added"]
    ignored = ignored_paths(listed, upper=upper, lower=lower, whiteout=whiteout, existing=existing)
    return [
        Found(path=path, change=replace(change, ignored=path in ignored), origin=origins.get(path))
        for path, change in sorted(listed.items(), key=lambda item: item[1].path)
    ]


def is_text(side: Side | None) -> bool:
    """Whether the side can be shown as lines (nothing at all can)."""
    if side is None or side.kind == "symlink":
        return True
    data = side.data
    if data is None or len(data) > LARGE_BYTES or b"\0" in data[:_SNIFF]:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _candidate(path: bytes, side: Side | None) -> _Candidate | None:
    if side is None or side.kind != "file" or not side.data:
        return None
    return _Candidate(path, hashlib.sha256(side.data).digest(), len(side.data), is_text(side))


def _add_candidates(
    pair: TreePair,
    objects: ObjectWriter,
    deleted: list[_Candidate],
    added: list[_Candidate],
    *,
    upper: Path,
    lower: Path,
) -> bool:
    """Put into the trees what may have been renamed: what has the same content on both sides, and similar text.

    Contents are read again here: of all that an agent adds, hardly anything was ever a file of the repo.
    """
    if installed() is None:
        return False
    same = {one.digest for one in deleted} & {one.digest for one in added}
    old, new = ([one for one in side if one.comparable] for side in (deleted, added))
    if len(old) * len(new) > COMPARED_PAIRS:
        old, new = [], []
    some = False
    for side, others, root in ((deleted, new, lower), (added, old, upper)):
        for one in side:
            similar = one.comparable and any(one.has_similar_size(other) for other in others)
            if one.digest not in same and not similar:
                continue
            content = read_side(root, one.path, LARGE_BYTES)
            if content is None or content.kind != "file" or content.data is None or not objects.has_room(content):
                continue  # the agent is at work
            pair.add(one.path, content if side is deleted else None, content if side is added else None)
            some = True
    return some


def _take(one: Statistic, listed: dict[bytes, FileChange]) -> None:
    """Put what git has counted or found into the list."""
    known = listed[one.path]
    if one.origin is not None:
        old = listed.pop(one.origin)
        known = replace(
            known,
            change="renamed",
            old_path=old.path,
            old_size=old.old_size,
            old_mode=old.old_mode,
            binary=known.binary or old.binary,
            insertions=0,
            deletions=0,
        )
    elif known.change in {"added", "deleted"}:
        return
    if one.lines is None:
        known = replace(known, binary=True)
    elif not known.binary:
        known = replace(known, insertions=one.lines[0], deletions=one.lines[1])
    listed[one.path] = known


def _kind(difference: Difference) -> Kind:
    before, after = difference.before, difference.after
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    same = before.kind == after.kind == "file" and before.size == after.size and before.mode != after.mode
    return "mode" if same and before.data is not None and before.data == after.data else "modified"


def _change(difference: Difference, *, binary: bool) -> FileChange:
    """With the line counts of a file that is on one side only, or changed its kind; git counts the others."""
    before, after = difference.before, difference.after
    counted = before is None or after is None or before.kind != after.kind
    return FileChange(
        path=os.fsdecode(difference.path),
        change=_kind(difference),
        size=after.size if after else None,
        binary=binary,
        insertions=_lines(after) if counted else 0,
        deletions=_lines(before) if counted else 0,
        old_size=before.size if before else None,
        mode=_mode(after),
        old_mode=_mode(before),
    )


def _lines(side: Side | None) -> int:
    data = side.data if side is not None and side.data is not None and is_text(side) else b""
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


def _mode(side: Side | None) -> str | None:
    return f"{side.mode:06o}" if side and side.mode else None


class Chosen:
    """A ``ChangeSelection`` as bytes.  Raises InvalidRequestError for a path that cannot be one in a workspace."""

    def __init__(self, selection: ChangeSelection) -> None:
        self.ignored = selection.ignored
        self.paths = frozenset(checked_path(path) for path in selection.paths)
        self.all = not selection.paths or b"" in self.paths

    def covers(self, path: bytes) -> bool:
        """Whether the path, or a directory above it, is meant."""
        if self.all or path in self.paths:
            return True
        at = path.rfind(b"/")
        while at >= 0:
            if path[:at] in self.paths:
                return True
            at = path.rfind(b"/", 0, at)
        return False

    def takes(self, path: bytes, origin: bytes | None, *, ignored: bool) -> bool:
        """Whether a change is meant (of a rename either side may be named), with what holds for ignored files."""
        if not (self.covers(path) or (origin is not None and self.covers(origin))):
            return False
        return not ignored or self.ignored or path in self.paths

    def unmatched(self, found: Iterable[bytes]) -> list[bytes]:
        """Named paths that stand for none of the ``found`` ones."""
        left = set(self.paths) - {b""}
        for path in found:
            if not left:
                break
            left = {name for name in left if path != name and not path.startswith(name + b"/")}
        return sorted(left)


def checked_path(text: str) -> bytes:
    """A path in the workspace as bytes, without ``./`` in front and ``/`` behind; empty: all of it."""
    try:
        path = os.fsencode(text)
    except UnicodeEncodeError:
        path = b"\0"
    parts = [part for part in path.split(b"/") if part not in {b"", b"."}]
    if path.startswith(b"/") or b"\0" in path or b".." in parts:
        raise InvalidRequestError(f"{text!r} is no path in the workspace: give it relative to the repo's root")
    return b"/".join(parts)
