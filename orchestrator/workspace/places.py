"""What the modules share that make, read and change a conversation's directories."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import StorageError

ID: Final = re.compile(r"[0-9a-f]{32}")


def recorded(base: Path) -> tuple[str | None, Path] | None:
    """What the conversation's workspace lies over: (as given, real path); None before its first run."""
    try:
        record = json.loads((base / "source.json").read_bytes())
        return record["given"], Path(record["real"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{base / 'source.json'} is damaged: {error}") from error


def as_prepared(mount: WorkspaceMount) -> WorkspaceMount:
    """The mount with the lower directory that it was prepared with, even if a link has been changed since."""
    if mount.upper is None:
        return mount
    known = recorded(mount.upper.parent)
    lower = known[1] if known is not None else mount.source
    return WorkspaceMount(mode=mount.mode, source=lower, upper=mount.upper, work=mount.work)


def own_directory(path: Path) -> None:
    """A directory that is ours and closed to others; one that is there is kept with its content."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101  # by descriptor: the agent may have closed it to us
    finally:
        os.close(fd)
