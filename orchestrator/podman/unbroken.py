"""Work that must not be cut in half by a cancellation, with a limit on how much of it goes on at the same time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from orchestrator.errors import SandboxError
from orchestrator.tasks import TaskOwner

T = TypeVar("T")
log = logging.getLogger(__name__)

JOIN_SECONDS: Final = 30.0


class Unbroken:
    """Runs work in tasks of its own: a caller that is cancelled goes, the work goes on, its result is discarded."""

    def __init__(self, *, slots: int) -> None:
        self._tasks = TaskOwner("podman")
        self._slots = asyncio.Semaphore(slots)

    async def run(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run to the end.  Raises what ``work`` raises."""
        return await self._finish(self._spawn(work, name), None)

    async def run_in_slot(
        self, work: Coroutine[Any, Any, T], *, name: str, discard: Callable[[T], Coroutine[Any, Any, None]]
    ) -> T:
        """The same in one of the slots; when the caller was cancelled meanwhile, ``discard`` gets the result.

        Cancelled while it still waits for a slot: ``work`` is never begun.
        """
        try:
            await self._slots.acquire()
        except BaseException:
            work.close()
            raise
        task = self._spawn(work, name)
        task.add_done_callback(lambda _: self._slots.release())
        return await self._finish(task, discard)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T | SandboxError]":
        async def outcome() -> T | SandboxError:
            try:
                return await work
            except SandboxError as error:  # the caller's to handle: no crash of the task
                return error

        return self._tasks.spawn(outcome(), name=name)

    async def _finish(
        self, task: "asyncio.Task[T | SandboxError]", discard: Callable[[T], Coroutine[Any, Any, None]] | None
    ) -> T:
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if discard is not None:
                self._tasks.spawn(_discard(task, discard), name=f"{task.get_name()}, cancelled")
            raise
        if isinstance(result, SandboxError):
            raise result
        return result

    async def aclose(self) -> None:
        """Wait for what is under way, at most 30 s; cancel the rest."""
        await self._tasks.join(timeout=JOIN_SECONDS)
        await self._tasks.aclose()


async def _discard(task: "asyncio.Task[T | SandboxError]", discard: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    result = await task
    if isinstance(result, SandboxError):
        return
    try:
        await discard(result)
    except SandboxError as error:
        log.warning("what a cancelled start had made could not be removed yet: %s", error)
