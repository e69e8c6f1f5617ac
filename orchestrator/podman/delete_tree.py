"""Removing directories of ours: without ever leaving them, and with files that belong to subordinate ids."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.errors import StorageError
from orchestrator.system import processes

REMOVE_SECONDS: Final = 300.0


async def delete_tree(
    path: Path, *, roots: Sequence[Path], podman: str = "podman", env: dict[str, str] | None = None
) -> None:
    """Remove ``path``, a directory (or file) strictly below one of ``roots``; fine when it is not there.

    Symbolic links are removed, never followed.  What belongs to subordinate ids or cannot be entered (the overlay's
    ``work/work``) is removed in the user namespace.  Raises StorageError.
    """
    if not await asyncio.to_thread(_inside, path, roots):
        raise StorageError(f"{path} is not in a directory of podmentor: not removed")
    if await asyncio.to_thread(_removed, path):
        return
    argv = [podman, "unshare", "rm", "-rf", "--one-file-system", "--", str(path)]
    try:
        code, errors = await processes.run(argv, timeout=REMOVE_SECONDS, env=env)
    except (TimeoutError, OSError) as error:
        raise StorageError(f"{path} cannot be removed: {type(error).__name__} {error}".rstrip()) from None
    if code != 0 or await asyncio.to_thread(os.path.lexists, path):
        raise StorageError(f"{path} cannot be removed: {errors or f'exit code {code}'}")


def _inside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether the path lies below a root, by its name and with the links of its parents resolved."""
    if not path.is_absolute() or ".." in path.parts or not any(root in path.parents for root in roots):
        return False
    parent = path.parent.resolve()
    return any(parent.is_relative_to(root.resolve()) for root in roots)


def _removed(path: Path) -> bool:
    """Remove what can be removed as ourselves; whether nothing is left."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        # Where the platform has openat (Linux has), rmtree cannot be led out by a link that is swapped in meanwhile.
        with contextlib.suppress(OSError):
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)
