"""Background tasks with an owner: each has a name, is kept referenced, and is reported when it crashes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


def ignore_outcome(task: asyncio.Future[Any]) -> None:
    """A ``done_callback`` for a task that everybody may have given up waiting for: how it ends is nobody's concern."""
    if not task.cancelled():
        task.exception()


class TaskOwner:
    """Holds the tasks that one object started; ``aclose`` cancels them and waits, at most ``grace`` seconds.

    A crash of a task is logged once, with its traceback; it does not end the others.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str, awaited: bool = False) -> asyncio.Task[T]:
        """Start ``coro`` as a task of this owner.  ``awaited``: somebody takes its result, and so its exception."""
        task = asyncio.create_task(coro, name=f"{self._name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard if awaited else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s crashed", task.get_name(), exc_info=error)

    def __len__(self) -> int:
        return len(self._tasks)

    async def join(self, *, timeout: float) -> bool:
        """Wait until all tasks have ended by themselves; False when ``timeout`` seconds were not enough."""
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=timeout)
        return not pending

    async def aclose(self, *, grace: float = 5.0) -> None:
        """Cancel every task and wait for the end of all, at most ``grace`` seconds.  Safe to call twice."""
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=grace)
            for task in pending:
                log.error("task %s did not end within %.0f s of its cancellation", task.get_name(), grace)
