"""Ctrl-C and its kin: what a command that waits or works for long makes of them."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from orchestrator.cli.exits import INTERRUPTED
from orchestrator.system.tasks import TaskOwner

T = TypeVar("T")


class InterruptedByUserError(Exception):
    """Ctrl-C, at a point where nothing had begun or nothing more is to be waited for."""


@dataclass(frozen=True)
class Settled(Generic[T]):
    """How an awaitable ended.  Tasks return it, since an error that reaches its user is no crash to be logged."""

    value: T | None = None
    error: Exception | None = None

    @classmethod
    async def of(cls, work: Awaitable[T]) -> "Settled[T]":
        """Await ``work``; only its cancellation is passed on."""
        try:
            return cls(value=await work)
        except Exception as error:  # noqa: BLE001  # kept for whoever asks for the result
            return cls(error=error)

    def result(self) -> T:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class Interrupts:
    """SIGINT and SIGTERM as events: ``first`` asks for a clean end, ``second`` for the end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.second.is_set():
            os._exit(INTERRUPTED)  # a third one: whatever is still being tidied up, the user has waited enough
        (self.second if self.first.is_set() else self.first).set()

    async def guard(self, work: Coroutine[Any, Any, T], event: asyncio.Event) -> T:
        """``work``, given up (and waited for) when ``event`` comes first: InterruptedByUserError."""
        owner = TaskOwner("cli")
        task, watch = owner.spawn(Settled.of(work), name="work"), owner.spawn(event.wait(), name="signal")
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise InterruptedByUserError
            return task.result().result()
        finally:
            await owner.aclose()


def run_guarded(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C, a terminal that closes, or a TERM cancels the work, which then tidies up."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
