"""Puts back what an apply that failed or was interrupted has changed.

If all of its steps were made, there is only its journal to remove.  Else what was added is taken away and what was
there is put back, path by path; whatever somebody else has put at a path meanwhile is left alone.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import StorageError
from orchestrator.workspace.path_states import DIR_FLAGS, Key, Root, copy_file, entries, state_at, sync_directory

log = logging.getLogger(__name__)
Recovered = Literal["nothing", "completed", "rolled_back"]


def recover(journal: Path) -> Recovered:
    """Finish what a crash or a failure interrupted.  Blocking.

    Raises OSError, StorageError; then it can be repeated.
    """
    if not journal.is_dir():
        return "nothing"
    if (journal / "done").exists():
        shutil.rmtree(journal)
        return "completed"
    try:
        document = json.loads((journal / "journal.json").read_bytes())
    except FileNotFoundError:
        shutil.rmtree(journal)  # nothing had been touched yet
        return "nothing"
    except ValueError as error:
        raise StorageError(f"{journal / 'journal.json'} is damaged: {error}") from error
    with Root(Path(document["root"])) as target:
        for entry in document["steps"]:  # what was added goes first, to make room for what was there
            if entry["after"] is not None:
                _take_back(target, entry)
        for entry in document["steps"]:
            if entry["before"] is not None:
                _put_back(target, entry, journal)
    shutil.rmtree(journal)
    return "rolled_back"


def _take_back(target: Root, entry: dict[str, Any]) -> None:
    with suppress(FileNotFoundError, NotADirectoryError), target.parent(as_bytes(entry["temp"])) as (fd, name):
        os.unlink(name, dir_fd=fd)
    path = as_bytes(entry["path"])
    if entry["before"] is not None:
        return
    with suppress(FileNotFoundError, NotADirectoryError), target.parent(path) as (fd, name):
        state = state_at(fd, name)
        if state is not None:
            if not _ours(state.key, entry):
                return
            os.unlink(name, dir_fd=fd)
    remove_empty_parents(target, path, stop=as_bytes(entry["temp"]).rpartition(b"/")[0])


def _put_back(target: Root, entry: dict[str, Any], journal: Path) -> None:
    path, before = as_bytes(entry["path"]), entry["before"]
    state = target.state(path)
    if state is not None and (state.key == Key(*before["key"]) or not _ours(state.key, entry)):
        return  # it was not reached, or somebody else has been there since
    try:
        make_parents(target, path, before["parents"])
        with target.parent(path) as (fd, name), _opened_image(journal / before["image"]) as image:
            temp = b".podmentor-back-" + before["image"].encode()
            with suppress(FileNotFoundError):
                os.unlink(temp, dir_fd=fd)
            if Key(*before["key"]).kind == "symlink":
                os.symlink(os.read(image, 65536), temp, dir_fd=fd)
            else:
                copy_file(image, fd, temp, before["mode"])
            with suppress(PermissionError):
                os.chown(temp, before["uid"], before["gid"], dir_fd=fd, follow_symlinks=False)
            os.rename(temp, name, src_dir_fd=fd, dst_dir_fd=fd)
    except (NotADirectoryError, IsADirectoryError):
        log.warning("%s: something else is where %r was; it is left alone", target.path, path)


@contextmanager
def _opened_image(image: Path) -> Iterator[int]:
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _ours(key: Key, entry: dict[str, Any]) -> bool:
    """Whether what is there is what the step put there (merged content has a key of its own)."""
    return entry["after"] is not None and key == Key(*entry["after"])


def make_parents(target: Root, path: bytes, modes: Sequence[int] = ()) -> None:
    """The directories above ``path``, with these permissions (else 0755).  Raises NotADirectoryError."""
    at, depth = path.find(b"/"), 0
    while at >= 0:
        with target.parent(path[:at]) as (fd, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
            os.chmod(name, modes[depth] if depth < len(modes) else 0o755, dir_fd=fd)
        at, depth = path.find(b"/", at + 1), depth + 1


def modes_of_parents(target: Root, path: bytes) -> list[int]:
    """Permissions of the directories above ``path``, from the top."""
    found = []
    at = path.find(b"/")
    while at >= 0:
        with target.parent(path[:at]) as (fd, name):
            found.append(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode & 0o7777)
        at = path.find(b"/", at + 1)
    return found


def remove_empty_parents(target: Root, path: bytes, *, stop: bytes = b"") -> None:
    """The directories above ``path`` and below ``stop``, as far as they are empty; as git does it."""
    while (path := path.rpartition(b"/")[0]) not in {b"", stop}:
        try:
            with target.parent(path) as (fd, name):
                os.rmdir(name, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError:
            return


def remove_empty_tree(directory: int, name: bytes) -> None:
    """A directory with nothing but directories in it.  Raises OSError when there is more."""
    fd = os.open(name, DIR_FLAGS, dir_fd=directory)
    try:
        for inner in entries(fd):
            remove_empty_tree(fd, inner)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=directory)


def sync_path(path: Path) -> None:
    """Flush a directory of ours."""
    fd = os.open(path, DIR_FLAGS)
    try:
        sync_directory(fd)
    finally:
        os.close(fd)


def as_text(path: bytes) -> str:
    """A path in the journal."""
    return base64.b64encode(path).decode()


def as_bytes(text: str) -> bytes:
    """A path out of the journal."""
    return base64.b64decode(text)
