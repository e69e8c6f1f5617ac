"""What the repo had at each path when the agent first changed it: by this, conflicts are found and merges are made.

Kept in ``<subagent>/record``: ``bases.json``, and the contents by their SHA-256.  It is brought up to date at the end
of every run.  An overlay does not tell when in a run a file was copied up, so what the repo had is taken at the end of
the run in which the agent first changed the path; a file of the repo that was itself changed since that run began is
marked as unsure, and always counts as a conflict.  So is one that turns into a change without the agent having touched
it: there the repo has changed under a copy of the agent's.  Where the agent has not touched a path in that run (it lies
in a directory that it replaced earlier, say), the conversation's beginning stands for the run's.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StorageError
from orchestrator.workspace.content_store import ContentStore
from orchestrator.workspace.overlay.diff import Whiteout, differences
from orchestrator.workspace.path_states import Key, Root, current_stamp, opened, write_whole

_SLACK_NS: Final = 1_000_000_000
"""Time stamps of files lag behind the clock."""
DIRECTORY: Final = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """``key`` None: there was nothing."""

    key: Key | None
    unsure: bool = False
    """It was changed while the agent worked: nobody knows which of its states the agent saw."""


@dataclass(slots=True)
class Record:
    """The bases of all changed paths."""

    directory: Path
    bases: dict[bytes, Base] = field(default_factory=dict)
    began_ns: int | None = None
    """When the conversation began."""
    updated_ns: int = 0
    """When this was brought up to date last."""

    @property
    def contents(self) -> ContentStore:
        """The contents of the bases that are files."""
        return ContentStore(self.directory / "blobs")


def load(subagent_dir: Path) -> Record:
    """The record of a conversation; an empty one when there is none.  Raises StorageError."""
    record = Record(subagent_dir / DIRECTORY)
    try:
        found = json.loads((record.directory / "bases.json").read_bytes())
        record.began_ns, record.updated_ns = found["began_ns"], found["updated_ns"]
        record.bases = _bases(found["paths"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{record.directory / 'bases.json'} is damaged: {error}") from error
    return record


def update(subagent_dir: Path, *, upper: Path, lower: Path, whiteout: Whiteout, since_ns: int) -> Record:
    """Take up newly changed paths, forget those that are changed no more.  ``since_ns``: when the run began.

    Blocking.  Raises OSError, StorageError.
    """
    old = load(subagent_dir)
    began_ns = since_ns if old.began_ns is None else min(since_ns, old.began_ns)
    new = Record(old.directory, began_ns=began_ns, updated_ns=clock_ns())
    with Root(lower) as root, Root(upper) as above, new.contents as contents:
        for difference in differences(upper, lower, whiteout=whiteout, large=0):
            path = difference.path
            new.bases[path] = old.bases.get(path) or _newly(
                root, above, path, contents, began_ns, since_ns, old.updated_ns
            )
        contents.commit()
    _store(new)
    return new


def document(record: Record) -> dict[str, Any]:
    """The bases as JSON has them."""
    return {os.fsdecode(path): [base.key, base.unsure] for path, base in record.bases.items()}


def put_back(record: Record, paths: dict[str, Any]) -> None:
    """What ``document`` gave at another time is right again."""
    record.bases = _bases(paths)
    _store(record)


def _bases(paths: dict[str, Any]) -> dict[bytes, Base]:
    return {
        os.fsencode(path): Base(key=None if key is None else Key(*key), unsure=unsure)
        for path, (key, unsure) in paths.items()
    }


def forget(record: Record, paths: set[bytes]) -> None:
    """These paths are changed no more."""
    for path in paths:
        record.bases.pop(path, None)
    _store(record)


def changed_ns(stamp: tuple[int, ...]) -> int:
    """When an entry was changed last, by the kernel's word (nobody can set it)."""
    return stamp[4]


def clock_ns() -> int:
    """The time."""
    return time.time_ns()


def _newly(
    root: Root, above: Root, path: bytes, contents: ContentStore, began_ns: int, since_ns: int, updated_ns: int
) -> Base:
    """The base of a path that was no change when the record was brought up to date last."""
    stamp = None
    with suppress(OSError), above.parent(path) as (fd, name):
        stamp = current_stamp(fd, name)
    if stamp is not None and changed_ns(stamp) < updated_ns:
        # The agent has not touched it since: it is a change now because the repo has changed.
        return replace(_taken(root, path, contents, since_ns), unsure=True)
    touched = stamp is not None and changed_ns(stamp) >= since_ns - _SLACK_NS
    return _taken(root, path, contents, since_ns if touched else began_ns)


def _taken(root: Root, path: bytes, contents: ContentStore, since_ns: int) -> Base:
    state = root.state(path)
    if state is None or state.key.kind == "directory":
        return Base(key=None)
    unsure = changed_ns(state.stamp) >= since_ns - _SLACK_NS
    if state.key.kind == "file" and state.key.digest not in contents:
        with root.parent(path) as (fd, name), opened(fd, name) as source:
            unsure |= contents.add(source) != state.key.digest
    return Base(key=state.key, unsure=unsure)


def _store(record: Record) -> None:
    record.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole = {"began_ns": record.began_ns, "updated_ns": record.updated_ns, "paths": document(record)}
    write_whole(record.directory / "bases.json", json.dumps(whole).encode())
    record.contents.keep({base.key.digest for base in record.bases.values() if base.key is not None})
