"""Snapshots of an overlay's upper directory, one at the end of each run: what each run changed, and the way back.

``<subagent>/snapshots/<run>.json`` lists the entries of the upper directory; their contents are in ``blobs``.  A
file with the same stamp as in the snapshot before is not read again, so the cost follows what a run changed.  Beside
the entries each snapshot has the changes against the repo before and after its run; what was applied or dropped in
between belongs to no run.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from orchestrator.errors import NotFoundError, StorageError
from orchestrator.workspace.content_store import ContentStore
from orchestrator.workspace.overlay.diff import MAX_DEPTH, Whiteout, is_opaque
from orchestrator.workspace.overlay.editor import OPAQUE
from orchestrator.workspace.path_states import DIR_FLAGS, copy_file, entries, opened, stamp_of, write_whole
from orchestrator.workspace.setup.layout import ID, own_directory

DIRECTORY: Final = "snapshots"
KEPT: Final = 20
"""Older snapshots of a subagent are removed."""
MAX_BYTES: Final = 2 * 1024**3
"""A run that leaves more new content than this gets no snapshot."""
MAX_SECONDS: Final = 20.0
"""Nor does one whose new files take longer to be copied: a run is over only after that, however many files it left."""
NEXT: Final = "upper.next"
Marks: TypeAlias = dict[str, str]
"""By changed path what the agent has there: ``gone``, or kind, executable and digest in one text."""


@dataclass(slots=True)
class Snapshot:
    """``entries``: by path [type, mode, digest or target, mtime, stamp]; ``before`` and ``after``: the changes."""

    number: int = 0
    entries: dict[str, list[Any]] = field(default_factory=dict)
    before: Marks = field(default_factory=dict)
    after: Marks = field(default_factory=dict)
    bases: dict[str, Any] = field(default_factory=dict)
    """What the record of bases said then."""


def take(
    base: Path,
    run_id: str,
    *,
    upper: Path,
    changed: list[tuple[bytes, bool]],
    bases: dict[str, Any],
    whiteout: Whiteout,
) -> None:
    """The snapshot at the end of a run.  ``changed``: the paths that differ from the repo, and whether they exist.

    Blocking.  Raises OSError, StorageError (too much new content, or too many new files).
    """
    directory = base / DIRECTORY
    with _contents(base) as contents:
        earlier = _all(directory)
        last = earlier[-1][1] if earlier else Snapshot()
        new = Snapshot(number=last.number + 1, before=_baseline(directory), bases=bases)
        root = os.open(upper, DIR_FLAGS)
        try:
            _Walk(contents, last.entries, new.entries, whiteout).directory(root, "", 0)
        finally:
            os.close(root)
        contents.commit()
    new.after = _marks(new.entries, changed)
    _write(directory / f"{run_id}.json", _document(new))
    _write(directory / "baseline.json", new.after)
    _prune(base)


def rebase(base: Path, left: set[bytes]) -> None:
    """Changes were applied or dropped: what is ``left`` is where the next run begins."""
    directory = base / DIRECTORY
    if not directory.is_dir():
        return
    known = _baseline(directory)
    names = {os.fsdecode(path) for path in left}
    _write(directory / "baseline.json", {path: mark for path, mark in known.items() if path in names})


def of_run(base: Path, run_id: str) -> Snapshot:
    """Raises NotFoundError, StorageError."""
    path = base / DIRECTORY / f"{run_id}.json"
    try:
        return _read(path)
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no snapshot of run {run_id}: it has no overlay, never began, left too much, or is among the "
            f"older ones (the last {KEPT} are kept)"
        ) from None


def changes_of(snapshot: Snapshot) -> dict[str, str]:
    """By path what the run did: ``changed``, ``deleted`` or ``restored`` (to what the repo has)."""
    out = {}
    for path in sorted(snapshot.before.keys() | snapshot.after.keys()):
        was, now = snapshot.before.get(path), snapshot.after.get(path)
        if was != now:
            out[path] = "restored" if now is None else "deleted" if now == "gone" else "changed"
    return out


def restore(base: Path, snapshot: Snapshot, scratch_name: str) -> Path:
    """Make the upper directory what it was; the old one, for the caller to remove.  Blocking.

    Raises OSError, and StorageError when a content is damaged: then all is as it was.
    """
    building = base / scratch_name
    own_directory(building)
    contents = _contents(base)
    for path, (kind, mode, value, mtime, _) in snapshot.entries.items():
        _rebuild(building / path, kind, mode, value, mtime, contents)
    for path, (kind, mode, _, mtime, _) in reversed(snapshot.entries.items()):
        if kind in {"directory", "opaque"}:  # at last, since it may close the directory
            (building / path).chmod(mode)
            os.utime(building / path, ns=(mtime, mtime))
    building.rename(base / NEXT)
    _write(base / DIRECTORY / "baseline.json", snapshot.after)
    return finish(base, f"{scratch_name}-old") or building


def finish(base: Path, old_name: str) -> Path | None:
    """Put a rebuilt upper directory into its place, also after a crash; the one that was there, if any."""
    if not (base / NEXT).is_dir():
        return None
    old = None
    if (base / "upper").exists():
        old = (base / "upper").rename(base / old_name)
    (base / NEXT).rename(base / "upper")
    return old


def _rebuild(place: Path, kind: str, mode: int, value: str, mtime: int, contents: ContentStore) -> None:
    if kind in {"directory", "opaque"}:
        place.mkdir(mode=0o700)
        if kind == "opaque":
            os.setxattr(place, OPAQUE, b"y")
    elif kind == "symlink":
        place.symlink_to(value)
        os.utime(place, ns=(mtime, mtime), follow_symlinks=False)
    elif kind == "whiteout":
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    else:
        parent = os.open(place.parent, DIR_FLAGS)
        try:
            with contents.content(value) as source:
                if copy_file(source, parent, os.fsencode(place.name), mode) != value:
                    raise StorageError(f"the content of {place.name} in the snapshot is damaged")
        finally:
            os.close(parent)
        os.utime(place, ns=(mtime, mtime), follow_symlinks=False)


class _Walk:
    """Reads an upper directory; what cannot be entered or read, and pipes and sockets, are left out."""

    def __init__(
        self, contents: ContentStore, known: dict[str, list[Any]], out: dict[str, list[Any]], whiteout: Whiteout
    ) -> None:
        self._contents = contents
        self._known = known
        self._out = out
        self._whiteout = whiteout
        self._bytes = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def directory(self, fd: int, prefix: str, depth: int) -> None:
        """One directory, opened, with all below it."""
        for name in sorted(entries(fd)):
            path = prefix + os.fsdecode(name)
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            stamp = list(stamp_of(st))
            mode, mtime = stat.S_IMODE(st.st_mode) & 0o777, st.st_mtime_ns
            if self._whiteout(st):
                self._out[path] = ["whiteout", 0, "", mtime, stamp]
            elif stat.S_ISLNK(st.st_mode):
                target = os.fsdecode(os.readlink(name, dir_fd=fd))
                self._out[path] = ["symlink", 0, target, mtime, stamp]
            elif stat.S_ISREG(st.st_mode):
                with suppress(PermissionError):
                    self._out[path] = ["file", mode, self._content(fd, name, path, stamp), mtime, stamp]
            elif stat.S_ISDIR(st.st_mode) and depth < MAX_DEPTH:
                with suppress(PermissionError):
                    inner = os.open(name, DIR_FLAGS, dir_fd=fd)
                    try:
                        kind = "opaque" if is_opaque(inner) else "directory"
                        self._out[path] = [kind, mode, "", mtime, stamp]
                        self.directory(inner, path + "/", depth + 1)
                    finally:
                        os.close(inner)

    def _content(self, fd: int, name: bytes, path: str, stamp: list[int]) -> str:
        known = self._known.get(path)
        if known is not None and known[0] == "file" and known[4] == stamp and known[2] in self._contents:
            return str(known[2])
        self._bytes += stamp[2]
        if self._bytes > MAX_BYTES:
            raise StorageError(
                f"the run left more than {MAX_BYTES // 1024**3} GiB of new content: there is no snapshot"
            )
        if time.monotonic() > self._deadline:
            raise StorageError(
                f"the run left so many new files that {MAX_SECONDS:g} s are not enough: there is no snapshot"
            )
        with opened(fd, name) as source:
            return self._contents.add(source)


def _marks(found: dict[str, list[Any]], changed: list[tuple[bytes, bool]]) -> Marks:
    out = {}
    for path_bytes, exists in changed:
        path = os.fsdecode(path_bytes)
        entry = found.get(path)
        out[path] = "gone" if not exists else f"{entry[0]} {entry[1] & 0o100} {entry[2]}" if entry else "unread"
    return out


def _all(directory: Path) -> list[tuple[Path, Snapshot]]:
    found = [(path, _read(path)) for path in directory.glob("*.json") if ID.fullmatch(path.stem)]
    return sorted(found, key=lambda item: item[1].number)


def _contents(base: Path) -> ContentStore:
    return ContentStore(base / DIRECTORY / "blobs")


def _prune(base: Path) -> None:
    found = _all(base / DIRECTORY)
    for path, _ in found[:-KEPT]:
        path.unlink()
    wanted = {entry[2] for _, kept in found[-KEPT:] for entry in kept.entries.values() if entry[0] == "file"}
    _contents(base).keep(wanted)


def _baseline(directory: Path) -> Marks:
    try:
        return dict(json.loads((directory / "baseline.json").read_bytes()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StorageError(f"{directory / 'baseline.json'} is damaged: {error}") from error


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "number": snapshot.number,
        "entries": snapshot.entries,
        "before": snapshot.before,
        "after": snapshot.after,
        "bases": snapshot.bases,
    }


def _read(path: Path) -> Snapshot:
    try:
        return Snapshot(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def _write(path: Path, document: object) -> None:
    write_whole(path, json.dumps(document).encode())
