"""Seeing a run through: submit, follow, cancel on Ctrl-C, wait for the end."""

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from orchestrator.cli.client.api import ServiceGoneError
from orchestrator.cli.client.service import ServiceLink
from orchestrator.cli.exits import INTERRUPTED
from orchestrator.errors import PodmentorError, ShuttingDownError
from orchestrator.system.tasks import TaskOwner

T = TypeVar("T")
EventSink = Callable[[Mapping[str, Any]], None]
_CANCEL_SECONDS = 30.0
_SUBMIT_SECONDS = 40.0
_RENEWALS = 20
"""How often in a row a service may vanish without one event in between."""


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


@dataclass
class Progress:
    """How far a run has been followed."""

    run_id: str = ""
    subagent_id: str = ""
    last_seq: int = 0
    ended: bool = False
    interrupted: bool = False
    events: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


async def submit(link: ServiceLink, body: Mapping[str, Any]) -> dict[str, Any]:
    """Have a run accepted, exactly once, even when services come and go meanwhile."""
    key = uuid.uuid4().hex
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SUBMIT_SECONDS
    while True:
        try:
            return await link.client.submit(body, key=key)
        except (ServiceGoneError, ShuttingDownError):
            if loop.time() > deadline:
                raise
        await asyncio.sleep(0.2)  # a service that is stopping needs a moment to be gone
        await link.renew()


async def follow(link: ServiceLink, progress: Progress, sink: EventSink) -> None:
    """Hand every event to ``sink``, once and in order, until the run's last one."""
    renewals = 0
    while not progress.ended:
        try:
            async for event in link.client.events(progress.run_id, after=progress.last_seq):
                renewals = 0
                progress.last_seq = event["seq"]
                progress.events += 1
                progress.kinds[event["kind"]] = progress.kinds.get(event["kind"], 0) + 1
                progress.ended = event["kind"] in {"completed", "error"}
                sink(event)
        except ServiceGoneError:
            renewals += 1
            if renewals > _RENEWALS:
                raise
            await link.renew()


async def see_through(
    link: ServiceLink,
    progress: Progress,
    sink: EventSink,
    *,
    interrupts: Interrupts,
    on_cancel: Callable[[], None],
) -> None:
    """``follow``, where the first Ctrl-C cancels the run and the second one leaves.

    Raises InterruptedByUserError for the second one.  When the reader of our output goes away the run is cancelled.
    """
    owner = TaskOwner("follow")
    following = owner.spawn(Settled.of(follow(link, progress, sink)), name="events")
    first = owner.spawn(interrupts.first.wait(), name="interrupt")
    second = owner.spawn(interrupts.second.wait(), name="second interrupt")
    try:
        await asyncio.wait({following, first}, return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            progress.interrupted = True
            on_cancel()
            cancelling = owner.spawn(cancel(link, progress.run_id), name="cancel")
            await asyncio.wait({following, second}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                raise InterruptedByUserError
            cancelling.cancel()
        following.result().result()
    except BrokenPipeError:
        await cancel(link, progress.run_id)
        raise
    finally:
        await owner.aclose()


async def cancel(link: ServiceLink, run_id: str) -> None:
    """Ask for the end of a run, for at most 30 s; that the request fails is no error (the run may be over)."""
    try:
        async with asyncio.timeout(_CANCEL_SECONDS):
            await link.call(lambda client: client.cancel(run_id))
    except (PodmentorError, TimeoutError):
        return
