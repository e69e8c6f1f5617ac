"""The whole list of changes at one time: which paths, what became of them, what belongs together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.contract.changes import FileChange
from orchestrator.workspace.changes.ignores import ignored_paths
from orchestrator.workspace.changes.linediff import Budget
from orchestrator.workspace.changes.patch import FilePatch, Origin, file_patch, is_text
from orchestrator.workspace.changes.renames import Candidate, candidate, find_renames
from orchestrator.workspace.overlay.diff import LARGE_BYTES, Difference, Side, Whiteout, read_side

Kind = Literal["added", "modified", "deleted", "renamed", "mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One change; ``origin`` when it is a rename."""

    path: bytes
    change: FileChange
    origin: Origin | None = None


def survey(found: Iterator[Difference], *, upper: Path, lower: Path, whiteout: Whiteout) -> list[Found]:
    """All changes, sorted by path.  Reads each changed file once.  Raises OSError."""
    budget = Budget()
    listed: dict[bytes, FileChange] = {}
    deleted: list[Candidate] = []
    added: list[Candidate] = []
    for difference in found:
        patch = file_patch(difference, budget)
        listed[difference.path] = _change(difference, patch, _kind(difference))
        before, after = difference.before, difference.after
        if after is None and (one := _candidate(difference.path, before)):
            deleted.append(one)
        elif before is None and (one := _candidate(difference.path, after)):
            added.append(one)
    renames = find_renames(deleted, added)
    origins = {}
    for path, (old, percent) in renames.items():
        before, after = read_side(lower, old, LARGE_BYTES), read_side(upper, path, LARGE_BYTES)
        if before is None or after is None or before.kind != after.kind:
            continue  # the agent is at work
        origins[path] = Origin(path=old, similarity=percent)
        moved = Difference(path=path, before=before, after=after)
        change = _change(moved, file_patch(moved, budget, origins[path]), "renamed")
        listed[path] = replace(change, old_path=os.fsdecode(old))
        listed.pop(old, None)
    existing = [path for path, change in listed.items() if change.change != "added"]
    ignored = ignored_paths(listed, upper=upper, lower=lower, whiteout=whiteout, existing=existing)
    return [
        Found(path=path, change=replace(change, ignored=path in ignored), origin=origins.get(path))
        for path, change in sorted(listed.items(), key=lambda item: item[1].path)
    ]


def _candidate(path: bytes, side: Side | None) -> Candidate | None:
    if side is None or side.kind != "file" or side.data is None:
        return None
    digest = hashlib.sha256(side.data).digest()
    return candidate(path, digest, side.data, text=is_text(side))


def _kind(difference: Difference) -> Kind:
    before, after = difference.before, difference.after
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    same = before.kind == after.kind == "file" and before.size == after.size and before.mode != after.mode
    return "mode" if same and before.data is not None and before.data == after.data else "modified"


def _change(difference: Difference, patch: FilePatch, kind: Kind) -> FileChange:
    before, after = difference.before, difference.after
    return FileChange(
        path=os.fsdecode(difference.path),
        change=kind,
        size=after.size if after else None,
        binary=patch.binary,
        insertions=patch.insertions,
        deletions=patch.deletions,
        old_size=before.size if before else None,
        mode=_mode(after),
        old_mode=_mode(before),
    )


def _mode(side: Side | None) -> str | None:
    return f"{side.mode:06o}" if side and side.mode else None
