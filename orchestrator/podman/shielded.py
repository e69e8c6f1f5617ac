"""Work that must not be cut in half by a cancellation, with a limit on how much of it goes on at the same time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from orchestrator.errors import SandboxError
from orchestrator.system.tasks import TaskOwner

T = TypeVar("T")
Meanwhile: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
log = logging.getLogger(__name__)

JOIN_SECONDS: Final = 30.0
MEANWHILE_SECONDS: Final = 0.25


class Unbroken:
    """Runs work in tasks of its own: a caller that is cancelled goes, the work goes on, its result is discarded."""

    def __init__(self, *, slots: int) -> None:
        self._tasks = TaskOwner("podman")
        self._slots = asyncio.Semaphore(slots)
        self._undoing: dict[str, set[asyncio.Task[None]]] = {}

    async def run(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run to the end.  Raises what ``work`` raises."""
        return _result(await asyncio.shield(self._spawn(work, name)))

    async def run_in_slot(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str,
        key: str,
        discard: Callable[[T | None], Coroutine[Any, Any, None]],
        meanwhile: Meanwhile | None = None,
    ) -> T:
        """The same in one of the slots; when the caller was cancelled meanwhile, ``discard`` gets the result (None: it
        has failed).

        From the cancellation until there is a result ``meanwhile`` is called again and again; ``settled(key)`` waits
        for the end of it all.  Cancelled while it still waits for a slot: ``work`` is never begun.
        """
        try:
            await self._slots.acquire()
        except BaseException:
            work.close()
            raise
        task = self._spawn(work, name)
        task.add_done_callback(lambda _: self._slots.release())
        try:
            return _result(await asyncio.shield(task))
        except asyncio.CancelledError:
            undo = self._tasks.spawn(_discard(task, discard, meanwhile), name=f"{task.get_name()}, cancelled")
            self._undoing.setdefault(key, set()).add(undo)
            undo.add_done_callback(lambda _: self._undone(key, undo))
            raise

    async def settled(self, key: str) -> None:
        """Until nothing is left of the cancelled work with this key."""
        while undoing := self._undoing.get(key):
            await asyncio.wait(undoing)

    def _undone(self, key: str, undo: asyncio.Task[None]) -> None:
        self._undoing[key].discard(undo)
        if not self._undoing[key]:
            del self._undoing[key]

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T | SandboxError]:
        async def outcome() -> T | SandboxError:
            try:
                return await work
            except SandboxError as error:  # the caller's to handle: no crash of the task
                return error

        return self._tasks.spawn(outcome(), name=name)

    async def aclose(self) -> None:
        """Wait for what is under way, at most 30 s; cancel the rest."""
        await self._tasks.join(timeout=JOIN_SECONDS)
        await self._tasks.aclose()


def _result(outcome: T | SandboxError) -> T:
    if isinstance(outcome, SandboxError):
        raise outcome
    return outcome


async def _discard(
    task: asyncio.Task[T | SandboxError],
    discard: Callable[[T | None], Coroutine[Any, Any, None]],
    meanwhile: Meanwhile | None,
) -> None:
    while meanwhile is not None and not task.done():
        await meanwhile()
        await asyncio.wait({task}, timeout=MEANWHILE_SECONDS)
    result = await task
    try:
        await discard(None if isinstance(result, SandboxError) else result)
    except SandboxError as error:
        log.warning("what a cancelled start had made could not be removed yet: %s", error)
