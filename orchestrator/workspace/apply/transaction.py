"""Changes many files of a repo so that all of them are changed or none.

Each file is written beside its place and renamed into it.  Before that, a journal (``<subagent>/apply``) has what was
at every path; a failure puts it back, and so does ``recovery`` after a crash.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import ConflictError
from orchestrator.workspace.apply.plan import Step
from orchestrator.workspace.apply.rollback import (
    as_bytes,
    as_text,
    make_parents,
    modes_of_parents,
    recover,
    remove_empty_parents,
    remove_empty_tree,
    sync_path,
)
from orchestrator.workspace.path_states import (
    DIR_FLAGS,
    Root,
    copy_file,
    current_stamp,
    opened,
    sync_directory,
    write_new,
)

DIRECTORY: Final = "apply"


class Transaction:
    """One apply.  ``journal``: a directory that does not exist yet, on a disk of ours."""

    def __init__(self, *, target: Root, upper: Root, journal: Path, token: bytes) -> None:
        self._target = target
        self._upper = upper
        self._journal = journal
        self._token = token

    def run(self, steps: Sequence[Step]) -> None:
        """Make all steps.  Raises ConflictError (somebody changed a file at the same time), OSError; then nothing has
        changed."""
        self._journal.mkdir(mode=0o700)
        try:
            entries = self._prepared(steps)
            for step in steps:
                if step.action == "delete":
                    self._delete(step)
            for step, entry in zip(steps, entries, strict=True):
                if step.action != "delete":
                    self._put(step, entry)
            self._sync(steps)
            (self._journal / "done").touch()
            sync_path(self._journal)
        except BaseException:
            recover(self._journal)
            raise
        shutil.rmtree(self._journal)

    def _prepared(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """Before-images and new contents on disk, and the journal that says so."""
        entries: list[dict[str, Any]] = []
        images = os.open(self._journal, DIR_FLAGS)
        try:
            for number, step in enumerate(steps):
                place = _nearest(self._target, step.path)
                entry: dict[str, Any] = {
                    "path": as_text(step.path),
                    "before": None,
                    "after": step.after,
                    "temp": as_text(b"%b.podmentor-%b-%d" % (place, self._token, number)),
                }
                entries.append(entry)
                if step.before is not None:
                    entry["before"] = {
                        "key": step.before.key,
                        "mode": step.before.mode,
                        "uid": step.before.uid,
                        "gid": step.before.gid,
                        "image": f"{number}",
                        "parents": modes_of_parents(self._target, step.path),
                    }
                    self._keep(step, images, f"{number}".encode())
            write_new(
                images,
                b"journal.json.part",
                json.dumps({"root": str(self._target.path), "steps": entries}).encode(),
                0o600,
            )
            os.rename("journal.json.part", "journal.json", src_dir_fd=images, dst_dir_fd=images)
            sync_directory(images)
        finally:
            os.close(images)
        for step, entry in zip(steps, entries, strict=True):
            if step.action != "delete":
                self._stage(step, as_bytes(entry["temp"]), entry)
        return entries

    def _keep(self, step: Step, images: int, name: bytes) -> None:
        assert step.before is not None
        with self._target.parent(step.path) as (fd, last):
            if step.before.key.kind == "symlink":
                write_new(images, name, os.readlink(last, dir_fd=fd), 0o600)
            else:
                with opened(fd, last) as source:
                    if copy_file(source, images, name, 0o600) != step.before.key.digest:
                        raise _changed(step.path)

    def _stage(self, step: Step, temp: bytes, entry: dict[str, Any]) -> None:
        with self._target.parent(temp) as (fd, name):
            if step.action == "symlink":
                with self._upper.parent(step.path) as (above, last):
                    os.symlink(os.readlink(last, dir_fd=above), name, dir_fd=fd)
            elif step.data is not None:
                write_new(fd, name, step.data, step.mode)
            else:
                with self._upper.parent(step.path) as (above, last), opened(above, last) as source:
                    digest = copy_file(source, fd, name, step.mode)
                if step.after is None or digest != step.after.digest:
                    raise ConflictError(f"the agent's file {step.path!r} was changed while it was being applied")
            _keep_owner(fd, name, entry["before"], step)

    def _unchanged(self, step: Step, fd: int, name: bytes) -> None:
        """Nobody has touched the path since it was planned (an empty directory in its place is looked at later)."""
        now = current_stamp(fd, name)
        if now != (step.before.stamp if step.before is not None else None) and not (
            step.before is None and _is_directory(fd, name)
        ):
            raise _changed(step.path)

    def _delete(self, step: Step) -> None:
        with self._target.parent(step.path) as (fd, name):
            self._unchanged(step, fd, name)
            os.unlink(name, dir_fd=fd)
        remove_empty_parents(self._target, step.path)

    def _put(self, step: Step, entry: dict[str, Any]) -> None:
        make_parents(self._target, step.path)
        temp = as_bytes(entry["temp"])
        with self._target.parent(temp) as (source, temp_name), self._target.parent(step.path) as (fd, name):
            self._unchanged(step, fd, name)
            if step.before is None and _is_directory(fd, name):
                remove_empty_tree(fd, name)
            os.rename(temp_name, name, src_dir_fd=source, dst_dir_fd=fd)

    def _sync(self, steps: Sequence[Step]) -> None:
        for path in {step.path.rpartition(b"/")[0] for step in steps}:
            with suppress(OSError), self._target.parent(path + b"/x" if path else b"x") as (fd, _):
                sync_directory(fd)


def _keep_owner(fd: int, name: bytes, before: dict[str, Any] | None, step: Step) -> None:
    if before is None:
        return
    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if (st.st_uid, st.st_gid) == (before["uid"], before["gid"]):
        return
    try:
        os.chown(name, before["uid"], before["gid"], dir_fd=fd, follow_symlinks=False)
    except PermissionError:
        raise ConflictError(
            f"the repo's {os.fsdecode(step.path)!r} belongs to another user or group, and that could not be kept"
        ) from None


def _is_directory(fd: int, name: bytes) -> bool:
    try:
        os.close(os.open(name, DIR_FLAGS, dir_fd=fd))
    except OSError:
        return False
    return True


def _changed(path: bytes) -> ConflictError:
    return ConflictError(f"the repo's {os.fsdecode(path)!r} was changed at this very moment; nothing was applied")


def _nearest(target: Root, path: bytes) -> bytes:
    """The nearest directory above ``path`` that exists (with ``/``): on the same file system as its place."""
    while (path := path.rpartition(b"/")[0]) != b"":
        with suppress(OSError), target.parent(path + b"/x"):
            return path + b"/"
    return b""
