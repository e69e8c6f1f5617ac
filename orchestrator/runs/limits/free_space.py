"""Room on the disk that holds the state: without it nothing that an agent prints could be kept.

conmon drops what it cannot write and the CLI does not notice, so a run must end before the disk is full, not after.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import StorageError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks while a run goes on."""
LAST_PART = 4
"""Runs are ended when less than this part of what is to be kept free is left."""
_DROPPED_BELOW = 4 * 1024 * 1024
"""With less than this left, output may have been dropped before it was seen."""
START_BYTES = 1024 * 1024
"""What a service needs to begin: less and not even the database can be opened."""


def refuse_full(place: Path) -> None:
    """Raises StorageError when nothing can be written there; OSError."""
    if (free := free_bytes(place)) < START_BYTES:
        raise StorageError(
            f"the disk that holds {place} is full ({free} bytes are left): make room there, then start again",
            free_bytes=free,
        )


def free_bytes(place: Path) -> int:
    """What this process may still write on the file system of ``place``.  Raises OSError."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


class Space:
    """The disk of the state directory.  ``keep_free``: bytes, 0 for not looking."""

    def __init__(self, place: Path, keep_free: int) -> None:
        self._place = place
        self._keep_free = keep_free

    async def free(self) -> int:
        """Bytes that may still be written.  Raises OSError."""
        return await asyncio.to_thread(free_bytes, self._place)

    async def check(self) -> None:
        """Whether a run may be taken.  Raises StorageError."""
        if not self._keep_free:
            return
        try:
            free = await self.free()
        except OSError as error:
            raise StorageError(f"{self._place} cannot be used: {error.strerror}", path=str(self._place)) from error
        if free < self._keep_free:
            raise StorageError(
                f"the disk that holds {self._place} is almost full: {free} bytes are left, {self._keep_free} are to"
                " stay free (storage.keep_free_bytes), so no run is taken; make room (podmentor gc)",
                free_bytes=free,
                keep_free_bytes=self._keep_free,
            )

    async def watch(self, decide: Callable[..., None]) -> None:
        """Call ``decide`` with reason, message and details whenever so little is left that runs must end.

        Looks until it is cancelled; one look serves all runs.
        """
        while self._keep_free:
            try:
                free = await self.free()
            except OSError as error:
                log.warning("the free space of %s is not known: %s", self._place, error)
            else:
                if free < self._keep_free // LAST_PART:
                    lost = " What it printed last may be missing." if free < _DROPPED_BELOW else ""
                    decide(
                        "disk_exceeded",
                        f"The disk that holds podmentor's state is full ({free} bytes are left): the agent was ended,"
                        f" since its output could not have been kept.{lost} Make room and go on with its subagent id.",
                        free_bytes=free,
                        keep_free_bytes=self._keep_free,
                    )
            await asyncio.sleep(LOOK_SECONDS)
