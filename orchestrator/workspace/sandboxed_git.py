"""Runs git where nothing that an agent wrote can tell it what to do.

Every command gets a private git directory, made here and empty, and a configuration that is ours alone: no system or
user configuration, no hooks, no filters, no file system monitor, no network.  What of the agent's repository is wanted
is handed in as plain data (objects, lists of paths).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from orchestrator.errors import StorageError

SCRATCH_PREFIX: Final = "scratch-"
"""Temporary directories of ours in a conversation's directory; what a crash leaves is removed with the next run."""
SECONDS: Final = 120.0
_SEARCH: Final = f"{os.defpath}:/usr/local/bin"
_NEUTRAL: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.quotePath=false",
    "protocol.allow=never",
    "gc.auto=0",
    "commit.gpgSign=false",
    "safe.directory=*",
    "core.autocrlf=false",
    "core.multiPackIndex=false",
    "core.commitGraph=false",
    "diff.external=",
    "core.pager=cat",
)


class GitError(Exception):
    """git said no; the text is what it printed."""


def installed() -> str | None:
    """The git to use, if there is one."""
    return shutil.which("git", path=_SEARCH)


def environment(**more: str) -> dict[str, str]:
    """All that git is told by its environment."""
    return {
        "PATH": _SEARCH,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **more,
    }


def git(
    arguments: Sequence[str | bytes],
    *,
    git_dir: Path,
    cwd: Path,
    work_tree: Path | None = None,
    stdin: bytes = b"",
    good: Sequence[int] = (0,),
    env: Mapping[str, str] | None = None,
) -> bytes:
    """What git printed.  Blocking; at most ``SECONDS``.

    Raises GitError when it ends with another code than the ``good`` ones, StorageError when there is no git.
    """
    program = installed()
    if program is None:
        raise StorageError("git is not installed on the service's machine; install it (apt-get install git)")
    argv: list[str | bytes] = [program, f"--git-dir={git_dir}"]
    if work_tree is not None:
        argv.append(f"--work-tree={work_tree}")
    for setting in _NEUTRAL:
        argv += ["-c", setting]
    try:
        done = subprocess.run(  # noqa: S603  # a list of arguments, and the program from a fixed search path
            [*argv, *arguments],
            cwd=cwd,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            env=environment(**(env or {})),
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {SECONDS:.0f} seconds") from None
    if done.returncode not in good:
        raise GitError(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}")
    return done.stdout


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A directory of ours for as long as the block lasts."""
    with TemporaryDirectory(dir=parent, prefix=SCRATCH_PREFIX, ignore_cleanup_errors=True) as name:
        yield Path(name)


def empty_git_dir(place: Path) -> Path:
    """A new, empty, bare repository below ``place`` (made by hand: ``git init`` would look for templates)."""
    directory = place / "git"
    for name in ("objects/info", "objects/pack", "refs/heads"):
        (directory / name).mkdir(parents=True)
    (directory / "HEAD").write_text("ref: refs/heads/nothing\n", encoding="ascii")
    (directory / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n", encoding="ascii")
    return directory
