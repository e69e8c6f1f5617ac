"""Runs git where nothing that an agent wrote can change what it does.

Every command gets a private git directory, made here and empty, and a configuration that is ours alone: no system or
user configuration, no hooks, no filters, no file system monitor, no network.  What of the agent's repository is wanted
is handed in as plain data (objects, lists of paths).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

from orchestrator.errors import StorageError

SCRATCH_PREFIX: Final = "scratch-"
"""Temporary directories of ours in a subagent's directory; what a crash leaves is removed with the next run."""
SECONDS: Final = 120.0
_ERROR_BYTES: Final = 64 * 1024
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
    """git failed; the text is what it printed on stderr."""


class GitTimeoutError(GitError):
    """git was killed because it took too long."""


def installed() -> str | None:
    """The git to use, if there is one."""
    return shutil.which("git", path=_SEARCH)


def environment(**more: str) -> dict[str, str]:
    """git's whole environment, ``more`` on top."""
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
    try:
        done = subprocess.run(  # noqa: S603  # a list of arguments, and the program from a fixed search path
            [*_command(git_dir, work_tree), *arguments],
            cwd=cwd,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            env=environment(**(env or {})),
        )
    except subprocess.TimeoutExpired:
        raise GitTimeoutError(f"git took longer than {SECONDS:.0f} seconds") from None
    if done.returncode not in good:
        raise _failed(done.stderr, done.returncode)
    return done.stdout


def git_until(arguments: Sequence[str], *, git_dir: Path, settings: Sequence[str], most: int, seconds: float) -> bytes:
    """What git printed; with more than ``most`` bytes of output it is killed, and ``most + 1`` of them are returned.

    ``settings``: configuration for this command.  Blocking.  Raises GitError, GitTimeoutError, StorageError.
    """
    options = [word for setting in settings for word in ("-c", setting)]
    late = threading.Event()
    with TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603  # as above
            [*_command(git_dir), *options, *arguments],
            cwd=git_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
        )

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                output = process.stdout.read(most + 1)
                if len(output) > most:
                    process.kill()
        finally:
            timer.cancel()
        if len(output) > most:
            return output
        if late.is_set():
            raise GitTimeoutError(f"git took longer than {seconds:.0f} seconds")
        if process.returncode != 0:
            errors.seek(0)
            raise _failed(errors.read(_ERROR_BYTES), process.returncode)
    return output


def _command(git_dir: Path, work_tree: Path | None = None) -> list[str | bytes]:
    program = installed()
    if program is None:
        raise StorageError("git is not installed on the service's machine; install it (apt-get install git)")
    trees = [] if work_tree is None else [f"--work-tree={work_tree}"]
    return [program, f"--git-dir={git_dir}", *trees, *(word for setting in _NEUTRAL for word in ("-c", setting))]


def _failed(stderr: bytes, code: int) -> GitError:
    return GitError(stderr.decode(errors="replace").strip() or f"exit code {code}")


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
