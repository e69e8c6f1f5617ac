"""What the modules share that make, read and change a subagent's directories."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import StorageError

_REMOVE_TRIES: Final = 5
ID: Final = re.compile(r"[0-9a-f]{32}")


def recorded(base: Path) -> tuple[str | None, Path] | None:
    """What the subagent's workspace lies over: (as given, real path); None before its first run."""
    try:
        record = json.loads((base / "source.json").read_bytes())
        return record["given"], Path(record["real"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{base / 'source.json'} is damaged: {error}") from error


def as_prepared(mount: WorkspaceMount) -> WorkspaceMount:
    """The mount with the lower directory that it was prepared with, even if a symlink has been changed since."""
    if mount.upper is None:
        return mount
    known = recorded(mount.upper.parent)
    lower = known[1] if known is not None else mount.source
    if mount.target is not None:
        return replace(mount, target=lower)
    return replace(mount, source=lower)


def own_directory(path: Path) -> None:
    """A directory that is ours and closed to others; one that is there is kept with its content."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101  # by descriptor: the agent may have closed it to us
    finally:
        os.close(fd)


def emptied(work: Path) -> bool:
    """Remove what an earlier mount left in an overlay's work directory.

    Usually that is one empty directory of a subordinate id: removing it takes rights on its parent alone.  False: there
    is more than that (the container was killed in the middle of a copy).
    """
    try:
        for entry in list(work.iterdir()):
            entry.rmdir()
    except OSError:
        return False
    return True


def removed(path: Path) -> bool:
    """Remove a tree of ours without following links; False when something in it takes other rights than ours."""
    for _ in range(_REMOVE_TRIES):
        try:
            if path.is_symlink():
                path.unlink()
            else:
                emptied(path / "work")
                shutil.rmtree(path)
        except FileNotFoundError:
            pass  # it is gone, or somebody removes things in it at the same time (the relay its sockets)
        except (OSError, RecursionError):
            return False
        if not os.path.lexists(path):
            return True
    return False
