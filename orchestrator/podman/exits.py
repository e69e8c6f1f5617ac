"""The end of containers: learned without polling and without a thread for each, and brought about without Podman.

conmon, at the end of a container: drains the output pipes into the log, syncs the log, writes the exit code into
``<exit dir>/<container id>`` (by rename), and only then runs ``podman container cleanup`` and ends.  So the exit file
is the first moment at which the log is complete and the code known (measured: under 1 ms after the container's init,
conmon's end 40 to 50 ms later).  One inotify descriptor per exit directory watches for it.  conmon's own end, by a
pidfd, is waited for beside it: the file never comes when conmon was killed.

The first process of each container is held, so that a container can be signalled and killed without Podman.  Podman may
be dead, hung or starting anew just when a run must end, and the OCI runtime may hang as well.  None of them is needed:
the first process belongs to our own user, and with it the kernel ends every process of its pid namespace, whatever they
ignore and however they have forked.  A pidfd that was opened while the process could be recognised never reaches
another one that has got its number later.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asyncinotify import Inotify, Mask

from orchestrator.errors import RuntimeUnavailableError
from orchestrator.system.processes import HeldProcess, cmdline, mounts_mention
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

NO_CODE: Final = -1
"""conmon has ended without a code that could be read: ask Podman."""
PROC: Final = Path("/proc")
DEAD_SECONDS: Final = 3.0
"""What the kernel has to end the processes of one container."""


@dataclass(slots=True)
class _Directory:
    inotify: Inotify
    task: asyncio.Task[None] | None = None
    waiting: dict[str, set[asyncio.Future[int]]] = field(default_factory=dict)


def is_conmon(pid: int, container_id: str) -> bool:
    """Whether this pid is the container's conmon, or the clean-up command that conmon has turned into."""
    return container_id in cmdline(pid)


def exit_dir(pid: int) -> Path | None:
    """Where this conmon will write exit files; None when it does not say (it has turned into its clean-up)."""
    arguments = cmdline(pid)
    for option, value in itertools.pairwise(arguments):
        if option == "--exit-dir" and value.startswith("/"):
            return Path(value)
    return None


def read_code(path: Path) -> int | None:
    """The exit code in an exit file; None when there is no such file or (after conmon's own time limit) none in it."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() and int(text) <= 255 else None


class ExitWatch:
    """Waits for ends of containers.  ``aclose`` ends all waiting (with RuntimeUnavailableError)."""

    def __init__(self) -> None:
        self._tasks = TaskOwner("exits")
        self._directories: dict[Path, _Directory] = {}

    async def wait(self, container_id: str, conmon_pid: int) -> int:
        """Until the container has ended and its log is complete: its exit code, or NO_CODE when Podman must tell."""
        held = HeldProcess.open(conmon_pid, lambda pid: is_conmon(pid, container_id))
        if held is None:
            return NO_CODE
        with held:
            directory = exit_dir(conmon_pid)
            if directory is None:
                await held.ended()
                return NO_CODE
            return await self._first(held, directory, container_id)

    async def _first(self, held: HeldProcess, directory: Path, container_id: str) -> int:
        with self._registered(directory, container_id) as code:
            file = directory / container_id
            if (found := read_code(file)) is not None:
                return found
            end = self._tasks.spawn(held.ended(), name=f"conmon {held.pid}")
            waited: set[asyncio.Future[Any]] = {code, end}
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if end.cancelled():
                    raise RuntimeUnavailableError("podmentor has ended and watches no container any more")
            finally:
                end.cancel()
                await asyncio.wait({end})
            if code.done():
                return code.result()
            found = read_code(file)
            return NO_CODE if found is None else found

    @contextlib.contextmanager
    def _registered(self, path: Path, container_id: str) -> Iterator[asyncio.Future[int]]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        directory = self._directory(path)
        if directory is not None:
            directory.waiting.setdefault(container_id, set()).add(future)
        try:
            yield future
        finally:
            future.cancel()
            if directory is not None:
                futures = directory.waiting[container_id]
                futures.discard(future)
                if not futures:
                    del directory.waiting[container_id]
                if not directory.waiting and self._directories.get(path) is directory:
                    self._forget(path)

    def _directory(self, path: Path) -> _Directory | None:
        if path not in self._directories:
            inotify: Inotify | None = None
            try:
                inotify = Inotify()
                inotify.add_watch(path, Mask.MOVED_TO | Mask.CLOSE_WRITE | Mask.ONLYDIR)
            except OSError as error:  # no more watches: conmon's end is noticed all the same, a little later
                log.warning("cannot watch %s for exit files: %s", path, error)
                if inotify is not None:
                    inotify.close()
                return None
            directory = _Directory(inotify)
            directory.task = self._tasks.spawn(self._read(path, directory), name=f"exit files in {path}")
            self._directories[path] = directory
        return self._directories[path]

    async def _read(self, path: Path, directory: _Directory) -> None:
        async for event in directory.inotify:
            names = [str(event.name)] if event.name else list(directory.waiting)  # no name: events were lost
            for name in names:
                if name not in directory.waiting or (code := read_code(path / name)) is None:
                    continue
                for future in directory.waiting[name]:
                    if not future.done():
                        future.set_result(code)

    def _forget(self, path: Path) -> None:
        directory = self._directories.pop(path)
        if directory.task is not None:
            # Closed only once the reader is gone: the loop must not watch a closed descriptor.
            directory.task.add_done_callback(lambda _: directory.inotify.close())
            directory.task.cancel()

    async def aclose(self) -> None:
        """Stop watching."""
        await self._tasks.aclose()
        for path in list(self._directories):
            self._forget(path)


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
