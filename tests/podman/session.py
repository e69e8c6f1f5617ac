"""Which test session a thing belongs to: names of its own, and the end of what a killed session has left behind.

A session is the process that was started as ``pytest``; the workers that it starts belong to it.  Each one notes where
its files are.  The next one looks at these notes: what belongs to a process that has ended is removed, what belongs to
one that lives is never touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LABEL = "podmentor.tests"
"""On containers that a test starts itself; those of a service are known by their mounts."""
SELFTEST = "podmentor-selftest"
"""What the names of images begin with that tests build."""


def started(pid: int) -> str | None:
    """When a process was started, in ticks since boot; None when there is none (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else rest[18]


def session_of(pid: int) -> str:
    """The name of the session that this process is."""
    return f"{pid}-{started(pid)}"


def lives(session: str) -> bool:
    """Whether its process is still there (and not another one with the same number)."""
    pid, _, ticks = session.partition("-")
    return started(int(pid)) == ticks


IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
SESSION = session_of(os.getppid() if IS_WORKER else os.getpid())


def runtime_dir() -> Path:
    """A path for the sockets of one service; short enough for a socket's."""
    return _base() / f"pmt-{SESSION}-{secrets.token_hex(3)}"


def image_name() -> str:
    """A name for an image that nobody else has."""
    return f"{SELFTEST}-{SESSION}-{secrets.token_hex(3)}"


def _base() -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"])


@contextmanager
def turn(name: str) -> Iterator[Path]:
    """For what only one session of this user may do at a time; yields the directory of the notes."""
    notes = _base() / "podmentor-tests"
    notes.mkdir(mode=0o700, exist_ok=True)
    with (notes / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield notes


@contextmanager
def beside_others(*, alone: bool) -> Iterator[None]:
    """While a test goes on: beside those of any session, or with none of them (what a user has is shared by all).

    Who waits to be alone holds the door, so that no other test begins meanwhile.
    """
    notes = _base() / "podmentor-tests"
    notes.mkdir(mode=0o700, exist_ok=True)
    with (notes / "room.lock").open("w") as room:
        with (notes / "door.lock").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def begin(files: Path) -> None:
    """Note where this session's files are, and remove what sessions have left that are dead."""
    with turn("sessions") as notes:
        (notes / SESSION).write_text(str(files))
        for note in notes.iterdir():
            if not re.fullmatch(r"\d+-\d+", note.name) or lives(note.name):
                continue
            with suppress(subprocess.SubprocessError):  # then the next session tries again
                remove_left_by(note.name, Path(note.read_text()))
                note.unlink()


def end() -> None:
    """It has tidied up: nobody has to look for what it left."""
    (_base() / "podmentor-tests" / SESSION).unlink(missing_ok=True)


def remove_left_by(session: str, files: Path) -> None:
    """Processes, containers, images and directories of a session whose process is dead.

    ``files``: where it had its files.
    """
    for pid in _processes(session, files):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if containers := _containers(session, files):
        _podman("rm", "--force", "--time=0", *containers)
    if images := _images(session):
        _podman("rmi", "--force", *images)
    places = [*_base().glob(f"pmt-{session}-*")]
    if files.parent.name.startswith("pmt."):  # made by scripts/test, which did not get to remove it
        places.append(files.parent)
    if places:
        _podman("unshare", "rm", "-rf", "--", *map(str, places))


def _processes(session: str, files: Path) -> list[int]:
    """Services, relays and commands that work on its files; nobody's editor or shell."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            words = [os.fsdecode(word) for word in line.split(b"\0")]
            ours = any(f"{files}/" in word or f"/pmt-{session}-" in word for word in words)
            if ours and entry.stat().st_uid == os.getuid() and _is_a_service(words):
                found.append(int(entry.name))
    return found


def _is_a_service(words: list[str]) -> bool:
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module.split(".")[0] == "orchestrator" or words[:1] == ["podman"] or words[0].endswith("/podman")


def _containers(session: str, files: Path) -> list[str]:
    rows: list[dict[str, Any]] = json.loads(_podman("ps", "--all", "--format=json") or "[]")
    mine = [row["Id"] for row in rows if (row.get("Labels") or {}).get(LABEL) == session]
    others = [row["Id"] for row in rows if "podmentor.instance" in (row.get("Labels") or {}) and row["Id"] not in mine]
    for container in others:
        mounts = ""
        with suppress(subprocess.CalledProcessError):  # it has gone meanwhile
            mounts = _podman("inspect", "--format={{range .Mounts}}{{.Source}}\n{{end}}", container)
        if any(source.startswith(f"{files}/") for source in mounts.splitlines()):
            mine.append(container)
    return mine


def _images(session: str) -> set[str]:
    listing = _podman("images", "--filter=label=podmentor.image", "--format=json")
    rows: list[dict[str, Any]] = json.loads(listing or "[]")
    prefix = f"{SELFTEST}-{session}-"
    return {row["Id"] for row in rows if str((row.get("Labels") or {}).get("podmentor.image")).startswith(prefix)}


def _podman(*argv: str) -> str:
    """What it printed.  Raises SubprocessError."""
    return subprocess.run(
        ["podman", *argv], check=True, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL, cwd="/"
    ).stdout
