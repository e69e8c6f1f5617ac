"""A private copy of a repo: for one that changes while the agent works on it.

The copy is what the overlay lies over, and no agent writes to it; blocks are shared with the repo where the file system
can do that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

from orchestrator.errors import StorageError
from orchestrator.workspace.sandboxed_git import SCRATCH_PREFIX

SECONDS: Final = 1800.0
_SEARCH: Final = os.defpath


def make_copy(repo: Path, target: Path) -> None:
    """Copy ``repo`` to ``target``, whole or not at all; what is there is kept.  Blocking.

    Raises StorageError, OSError.
    """
    if target.is_dir():
        return
    program = shutil.which("cp", path=_SEARCH)
    if program is None:
        raise StorageError("cp is not installed on the service's machine (package coreutils)")
    part = target.parent / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
    part.mkdir(mode=0o700)
    argv = [program, "--archive", "--reflink=auto", "--", f"{repo}/.", str(part)]
    try:
        done = subprocess.run(  # noqa: S603  # a list of arguments, and the program from a fixed search path
            argv,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            env={"PATH": _SEARCH, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise StorageError(f"copying {repo} took longer than {SECONDS / 60:.0f} minutes") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        shutil.rmtree(part, ignore_errors=True)
        raise StorageError(f"{repo} cannot be copied: {said[-1] if said else done.returncode}")
    part.chmod(0o700)
    part.rename(target)
