"""The first process of each container, held, so that a container can be signalled and killed without Podman.

Podman may be dead, hung or starting anew just when a run must end, and the OCI runtime may hang as well.  None of them
is needed: the first process belongs to our own user, and with it the kernel ends every process of its pid namespace,
whatever they ignore and however they have forked.  A pidfd that was opened while the process could be recognised
never reaches another one that has got its number later.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.podman.exits import is_conmon
from orchestrator.system.processes import HeldProcess, mounts_mention

PROC: Final = Path("/proc")
DEAD_SECONDS: Final = 3.0
"""What the kernel has to end the processes of one container."""


def is_init(pid: int, container_id: str) -> bool:
    """Whether this is the first process of that container: number 1 of a pid namespace of its own, with its mounts."""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1" and mounts_mention(pid, container_id)


def search(container_id: str) -> HeldProcess | None:
    """The container's first process, looked for among all of this user's.  Blocks for some milliseconds."""
    found = next((pid for pid in _own() if is_init(pid, container_id)), 0)
    return HeldProcess.open(found, lambda pid: is_init(pid, container_id))


def has_conmon(container_id: str) -> bool:
    """Whether somebody still writes the container's log, or cleans up behind it.  Blocks as well."""
    return any(is_conmon(pid, container_id) for pid in _own())


def _own() -> Iterator[int]:
    """The processes of this user."""
    me = os.geteuid()
    with os.scandir(PROC) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if entry.name.isdigit() and entry.stat().st_uid == me:
                    yield int(entry.name)


class Inits:
    """Holds one process per container that runs; ``drop`` what is gone, ``aclose`` at the end."""

    def __init__(self) -> None:
        self._held: dict[str, HeldProcess] = {}

    def hold(self, container_id: str, pid: int) -> None:
        """Hold the first process, known by its number from Podman (0: it has ended)."""
        if container_id not in self._held:
            held = HeldProcess.open(pid, lambda pid: is_init(pid, container_id))
            if held is not None:
                self._held[container_id] = held

    async def send(self, container_id: str, number: signal.Signals) -> bool:
        """Signal it.  False when no such process was found: whether the container runs is not known."""
        if (init := await self._find(container_id)) is None:
            return False
        init.send(number)
        return True

    async def kill(self, container_id: str) -> bool:
        """Kill all processes of a container; False when some were still there after ``DEAD_SECONDS``."""
        if (init := await self._find(container_id)) is None:
            return True
        init.send(signal.SIGKILL)
        # The first process of a pid namespace counts as ended only when every other one there has.
        return await init.ended_within(DEAD_SECONDS)

    async def _find(self, container_id: str) -> HeldProcess | None:
        if container_id not in self._held and (found := await asyncio.to_thread(search, container_id)) is not None:
            if container_id in self._held:
                found.close()  # somebody else was faster
            else:
                self._held[container_id] = found
        return self._held.get(container_id)

    def drop(self, container_id: str) -> None:
        """Close the handle on a container that is gone."""
        if (held := self._held.pop(container_id, None)) is not None:
            held.close()

    def aclose(self) -> None:
        """Close all handles; the containers go on."""
        for container_id in list(self._held):
            self.drop(container_id)
