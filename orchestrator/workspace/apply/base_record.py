"""What the repo had at each path when the agent first changed it: by this, conflicts are found and merges are made.

Kept in ``<subagent>/record``: ``began.json``, ``bases.json``, and the contents by their SHA-256.

The content of a base is recorded at the end of the run in which the agent first changed the path: before that nobody
knows which of a repo's many files it will be.  So whether the repo's file is still what the agent began with is decided
by the time at which the kernel says it was last changed (ctime, which nobody can set), against the time at which the
run began.  That time is taken from the clock that file systems stamp with, a step after everything that was there
before the run (``begin``), so that no file written just before a run looks as if it had been written in it.  A file of
the repo that was changed since is marked as unsure, and always counts as a conflict.

So is one that turns into a change without the agent having touched it: there the repo has changed under a copy of the
agent's.  What the agent did not touch in that run, or could not see in it (a directory that it had replaced before
hides what the repo gets there), counts from the beginning of the subagent's first run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StorageError
from orchestrator.workspace.content_store import ContentStore
from orchestrator.workspace.overlay.diff import Whiteout, differences, hiding
from orchestrator.workspace.path_states import Key, Root, current_stamp, opened, write_whole

DIRECTORY: Final = "record"
_NEVER_NS: Final = 2**62
_SECOND_NS: Final = 1_000_000_000
_FOREIGN_CLOCK_NS: Final = _SECOND_NS
"""How far the clock of a file server may be behind ours."""
_WAIT_SECONDS: Final = 1.0
"""For the clock to move on: no longer, should somebody set it back meanwhile."""
_REALTIME_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE of linux/time.h: the clock that file systems take their time stamps from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """``key`` None: there was nothing."""

    key: Key | None
    unsure: bool = False
    """It was changed while the agent worked: nobody knows which of its states the agent read."""


@dataclass(slots=True)
class Record:
    """The bases of all changed paths."""

    directory: Path
    bases: dict[bytes, Base] = field(default_factory=dict)
    hidden: set[bytes] = field(default_factory=set)
    """Paths at and below which the agent saw nothing of the repo when this was last brought up to date."""
    updated_ns: int = 0
    """When this was last brought up to date, in nanoseconds since 1970."""

    @property
    def contents(self) -> ContentStore:
        """The contents of the bases that are files."""
        return ContentStore(self.directory / "blobs")


@dataclass(frozen=True, slots=True)
class _Began:
    """When the first run and the latest one began, in nanoseconds since 1970; 0 when unknown: then all is unsure."""

    first_ns: int = 0
    latest_ns: int = 0


def begin(subagent_dir: Path, *, foreign_clock: bool = False) -> None:
    """Mark the beginning of a run; what anybody changes from now on counts as changed while the agent worked.

    ``foreign_clock``: the repo's time stamps come from another machine.  Blocks until the clock of the file systems,
    which goes in steps of up to 10 ms and is behind the exact one, has come to where that was: then what was there
    before has an earlier time stamp, and what comes has not.  Raises OSError, StorageError.
    """
    entered_ns = clock_ns()
    deadline = time.monotonic() + _WAIT_SECONDS
    while (now_ns := _file_clock_ns()) <= entered_ns and time.monotonic() < deadline:
        time.sleep(0.0005)
    mark_beginning(subagent_dir, now_ns - (_FOREIGN_CLOCK_NS if foreign_clock else 0))


def mark_beginning(subagent_dir: Path, at_ns: int) -> None:
    """``begin``, at a given time.  Raises OSError, StorageError."""
    known = _began(subagent_dir)
    first_ns = min(known.first_ns, at_ns) if known is not None else at_ns
    (subagent_dir / DIRECTORY).mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"first_ns": first_ns, "latest_ns": at_ns}
    write_whole(subagent_dir / DIRECTORY / "began.json", json.dumps(document).encode())


def load(subagent_dir: Path) -> Record:
    """The record of a subagent; an empty one when there is none.  Raises StorageError."""
    record = Record(subagent_dir / DIRECTORY)
    try:
        found = json.loads((record.directory / "bases.json").read_bytes())
        record.updated_ns = found["updated_ns"]
        record.bases = _bases(found["paths"])
        record.hidden = {os.fsencode(path) for path in found["hidden"]}
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{record.directory / 'bases.json'} is damaged: {error}") from error
    return record


def update(
    subagent_dir: Path, *, upper: Path, lower: Path, whiteout: Whiteout, private: bool, after_run: bool
) -> Record:
    """Take up newly changed paths, forget those that are changed no more.

    ``private``: nobody changes ``lower`` while an agent works.  ``after_run``: the latest run has just ended, so that
    newly changed paths were changed in it; else in any.  Blocking.  Raises OSError, StorageError.
    """
    old = load(subagent_dir)
    began = _began(subagent_dir) or _Began()
    if private:
        began = _Began(_NEVER_NS, _NEVER_NS)
    elif not after_run:
        began = _Began(began.first_ns, began.first_ns)
    new = Record(old.directory, hidden=set(hiding(upper, whiteout=whiteout)), updated_ns=clock_ns())
    with Root(lower) as root, Root(upper) as above, new.contents as contents:
        update = _Update(root, above, contents, began, old)
        for difference in differences(upper, lower, whiteout=whiteout, large=0):
            path = difference.path
            new.bases[path] = old.bases.get(path) or update.base_of(path)
        contents.commit()
    _store(new)
    return new


class _Update:
    """Finds the bases of paths that were no changes when the record was last brought up to date."""

    def __init__(self, lower: Root, upper: Root, contents: ContentStore, began: _Began, old: Record) -> None:
        self._lower = lower
        self._upper = upper
        self._contents = contents
        self._began = began
        self._old = old

    def base_of(self, path: bytes) -> Base:
        """The base of such a path.  Raises OSError."""
        parts = path.split(b"/")
        places = [b"/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
        stamps = [(place, stamp) for place in places if (stamp := self._stamp(place)) is not None]
        if not stamps:
            return self._current(path, self._began.first_ns)
        place, stamp = stamps[0]  # the entry itself, or what is there in the place of a directory above it
        if place == path and changed_ns(stamp) < self._old.updated_ns:
            # The agent has not touched it since: it is a change now because the repo has changed.
            return replace(self._current(path, self._began.latest_ns), unsure=True)
        hidden = any(above in self._old.hidden or above in self._old.bases for above in places)
        touched = changed_ns(stamp) >= self._began.latest_ns and not hidden
        return self._current(path, self._began.latest_ns if touched else self._began.first_ns)

    def _stamp(self, path: bytes) -> tuple[int, ...] | None:
        with suppress(OSError), self._upper.parent(path) as (fd, name):
            return current_stamp(fd, name)
        return None

    def _current(self, path: bytes, since_ns: int) -> Base:
        """What the repo has now; unsure when it may have been changed since."""
        state = self._lower.state(path)
        if state is None or state.key.kind == "directory":
            return Base(key=None)
        unsure = _maybe_after(changed_ns(state.stamp), since_ns)
        if state.key.kind == "file" and state.key.digest not in self._contents:
            with self._lower.parent(path) as (fd, name), opened(fd, name) as source:
                unsure |= self._contents.add(source) != state.key.digest
        return Base(key=state.key, unsure=unsure)


def document(record: Record) -> dict[str, Any]:
    """The bases as JSON has them."""
    return {os.fsdecode(path): [base.key, base.unsure] for path, base in record.bases.items()}


def put_back(record: Record, paths: dict[str, Any], hidden: Iterable[bytes]) -> None:
    """What ``document`` gave at another time holds again; ``hidden``: see ``Record``."""
    record.bases = _bases(paths)
    record.hidden = set(hidden)
    _store(record)


def keep(record: Record, paths: set[bytes], hidden: Iterable[bytes]) -> None:
    """No other paths than these are changed any more; ``hidden``: see ``Record``."""
    record.bases = {path: base for path, base in record.bases.items() if path in paths}
    record.hidden = set(hidden)
    _store(record)


def changed_ns(stamp: tuple[int, ...]) -> int:
    """When an entry was last changed (ctime), in nanoseconds since 1970."""
    return stamp[4]


def clock_ns() -> int:
    """The time, in nanoseconds since 1970."""
    return time.time_ns()


def _file_clock_ns() -> int:
    return time.clock_gettime_ns(_REALTIME_COARSE)


def _maybe_after(stamp_ns: int, since_ns: int) -> bool:
    """Whether what has this time stamp may have been changed since; some file systems keep whole (even) seconds."""
    whole = stamp_ns % _SECOND_NS == 0
    return stamp_ns + (2 * _SECOND_NS - 1 if whole else 0) >= since_ns


def _began(subagent_dir: Path) -> _Began | None:
    path = subagent_dir / DIRECTORY / "began.json"
    try:
        found = json.loads(path.read_bytes())
        return _Began(int(found["first_ns"]), int(found["latest_ns"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def _bases(paths: dict[str, Any]) -> dict[bytes, Base]:
    return {
        os.fsencode(path): Base(key=None if key is None else Key(*key), unsure=unsure)
        for path, (key, unsure) in paths.items()
    }


def _store(record: Record) -> None:
    record.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden = sorted(map(os.fsdecode, record.hidden))
    whole = {"updated_ns": record.updated_ns, "paths": document(record), "hidden": hidden}
    write_whole(record.directory / "bases.json", json.dumps(whole).encode())
    record.contents.keep({base.key.digest for base in record.bases.values() if base.key is not None})
