"""Measures a container from within its user namespace, where the service's user may not look from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from orchestrator.runs.limits import file_usage
from orchestrator.runs.limits.file_usage import OpenFiles, Walked

SECONDS: Final = 120.0
"""What one look may take."""
_POLL: Final = 0.1


def look_inside(
    init_pid: int,
    *,
    walks: Sequence[tuple[Sequence[bytes], int | None]],
    proc: str,
    pids: Sequence[int],
    devices: Sequence[int],
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[Walked], OpenFiles] | None:
    """Walk these trees (roots, ``stop_above``) and look at these processes' files; None when that cannot be done.

    Blocking.  ``init_pid``: the container's first process; its user namespace belongs to the service's user, who is
    allowed everything in it that concerns its own files.  The program that is run there is ``file_usage``.
    """
    asked = {
        "walks": [{"roots": [root.hex() for root in roots], "stop_above": stop} for roots, stop in walks],
        "proc": proc,
        "pids": list(pids),
        "devices": list(devices),
    }
    argv = ["nsenter", f"--user={proc}/{init_pid}/ns/user", "--", sys.executable, "-I", "-S", file_usage.__file__]
    try:
        answer = _answer(argv, json.dumps(asked).encode(), stopped)
        found: Mapping[str, Any] = json.loads(answer)
        return [Walked(**walk) for walk in found["walks"]], OpenFiles(**found["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answer(argv: list[str], question: bytes, stopped: Callable[[], bool]) -> bytes:
    process = subprocess.Popen(  # noqa: S603  # an argument list of ours
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path("/"),
        env={"PATH": os.defpath},
        start_new_session=True,
    )
    deadline = time.monotonic() + SECONDS
    waiting: bytes | None = question
    try:
        while True:
            try:
                return process.communicate(waiting, timeout=_POLL)[0]
            except subprocess.TimeoutExpired:
                waiting = None
                if stopped() or time.monotonic() > deadline:
                    raise OSError("nobody waits for it any more") from None
    finally:
        if process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
