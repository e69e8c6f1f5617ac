"""Starts the relay process so that it outlives us."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""Where the packages lie, in a checkout as in site-packages."""
READY_FD: Final = 3


def start_detached(python: str, arguments: Sequence[str], *, log_path: Path, ready_seconds: float) -> tuple[int, bool]:
    """Start ``python -m orchestrator.relay``; (pid, whether it said that it is ready).  Blocks: use a thread.

    It gets a session of its own, nothing of our environment and none of our descriptors; ``posix_spawn``, because the
    classes of ``subprocess`` and asyncio end or complain about a child that is left running.
    Raises: OSError.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawn(
            python,
            [python, "-P", "-m", "orchestrator.relay", "--ready-fd", str(READY_FD), *arguments],
            {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, writer, READY_FD),
            ],
            setsid=True,
            setsigmask=[],
        )
        os.close(writer)
        writer = -1
        # Its end closes the pipe too, so this wakes up either way.
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        ready = poll.poll(ready_seconds * 1000)
        return pid, bool(ready) and bool(os.read(reader, 16))
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
