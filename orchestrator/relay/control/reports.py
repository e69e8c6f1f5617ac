"""The service's side of the reports: hands them to the listener and acknowledges them to the relay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orchestrator.contract.egress import EgressListener
from orchestrator.errors import InvalidRequestError
from orchestrator.relay.protocol import report_from_wire
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 10.0
"""How long the last reports of a run that ends are waited for."""

Acknowledge = Callable[[int], Awaitable[object]]
"""Lets the relay drop the reports up to a number."""


class ReportReceiver:
    """Gives ``listener`` the reports of one relay after the other, each once, in their order."""

    def __init__(self, listener: EgressListener, owner: TaskOwner) -> None:
        self._listener = listener
        self._owner = owner
        self._queue: asyncio.Queue[tuple[dict[str, Any], Acknowledge]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._relay = ""
        self._lost = 0
        self._done = 0
        """Number of the last report of ``_relay`` that the listener has had."""
        self._moved = asyncio.Event()

    def push(self, message: dict[str, Any], acknowledge: Acknowledge) -> None:
        """Take a message of the relay; it is worked on in the background."""
        self._queue.put_nowait((message, acknowledge))
        if self._worker is None or self._worker.done():
            self._worker = self._owner.spawn(self._work(), name="reports")

    async def settled(self, relay: str, number: int) -> None:
        """Wait until the listener has had that report, at most ``SETTLE_SECONDS``."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._relay != relay or self._done < number:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            log.warning("the last reports of the egress proxy did not arrive in time")

    async def _work(self) -> None:
        while not self._queue.empty():
            message, acknowledge = self._queue.get_nowait()
            relay, lost = str(message.get("relay")), int(message.get("lost") or 0)
            if relay != self._relay:
                self._relay, self._done, self._lost = relay, 0, 0
            if lost > self._lost:
                log.warning("reports of the egress proxy were lost while no service was there: %d", lost - self._lost)
                self._lost = lost
            for number, report in message.get("reports") or ():
                if number > self._done:
                    await self._hand_over(report)
                    self._done = number
                    self._moved.set()
            await acknowledge(self._done)

    async def _hand_over(self, report: dict[str, Any]) -> None:
        try:
            await self._listener(report_from_wire(report))
        except InvalidRequestError:
            log.warning("a report of the egress proxy cannot be read")
        except Exception:
            log.exception("a report of the egress proxy was not taken")
