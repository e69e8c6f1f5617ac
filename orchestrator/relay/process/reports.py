"""The relay's side of the reports: keeps them, and pushes them to the service that has asked for them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from orchestrator.contract.egress import EgressReport
from orchestrator.relay.control.protocol import encode, report_to_wire
from orchestrator.relay.process.outbox import Outbox
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

PUSH_SECONDS: Final = 30.0
"""What a service has to take a push before its connection counts as dead."""


class Reporting:
    """Reports of all runs."""

    def __init__(self, owner: TaskOwner) -> None:
        self.relay_id = secrets.token_hex(8)
        """Tells this process's numbers from those of another relay."""
        self._owner = owner
        self._outbox = Outbox()
        self._fresh = asyncio.Event()
        self._pushing: asyncio.Task[None] | None = None

    @property
    def missed(self) -> bool:
        """Whether a service that has asked for the reports has not had all of them."""
        return self._pushing is not None and self._outbox.waiting_for > 0

    @property
    def waiting_for(self) -> int:
        """Number of the newest report when it has not been taken yet, else 0."""
        return self._outbox.waiting_for

    def put(self, report: EgressReport) -> None:
        """A report for the service."""
        lost = self._outbox.lost
        self._outbox.put(report)
        if self._outbox.lost > lost == 0:
            log.warning("reports are given up: no service takes them")
        self._fresh.set()

    def taken(self, number: int) -> None:
        """The service has those up to ``number``."""
        self._outbox.taken(number)
        self._fresh.set()

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        """Push to this connection, in place of the one before."""
        if self._pushing is not None:
            self._pushing.cancel()
        self._pushing = self._owner.spawn(self._push(writer), name="push")

    async def _push(self, writer: asyncio.StreamWriter) -> None:
        sent = 0
        while not writer.is_closing():
            self._fresh.clear()
            batch = self._outbox.next(sent)
            if not batch:
                await self._fresh.wait()
                continue
            sent = batch[-1][0]
            reports = [[number, report_to_wire(report)] for number, report in batch]
            writer.write(
                encode({"push": "egress", "relay": self.relay_id, "lost": self._outbox.lost, "reports": reports})
            )
            try:
                async with asyncio.timeout(PUSH_SECONDS):
                    await writer.drain()
            except OSError:  # TimeoutError too
                writer.close()
                return
