"""Seeing a run through: submit, follow, cancel on Ctrl-C, wait for the end."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cli.client.service import ServiceLink
from orchestrator.cli.signals import InterruptedByUserError, Interrupts, Settled
from orchestrator.errors import PodmentorError, ServiceGoneError, ShuttingDownError
from orchestrator.system.tasks import TaskOwner

EventSink = Callable[[Mapping[str, Any]], None]
_CANCEL_SECONDS = 30.0
_SUBMIT_SECONDS = 40.0
_RENEWALS = 20
"""How often in a row a service may vanish without one event in between."""


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
