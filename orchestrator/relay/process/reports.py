"""Reports on their way to the service: numbered, kept until it has taken them, pushed to the service that asks."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from typing import Final

from orchestrator.contract.egress import EgressReport
from orchestrator.relay.protocol import encode, report_to_wire
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

MAX_KEPT: Final = 10_000
"""Reports that wait for a service."""
WINDOW: Final = 256
"""Sent and not yet taken, at most."""
PUSH_SECONDS: Final = 30.0
"""What a service has to take a push before its connection counts as dead."""


class ReportQueue:
    """Every report that the service has not taken yet, oldest first; bounded while there is no service."""

    def __init__(self, *, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: deque[tuple[int, EgressReport]] = deque()
        self.last = 0
        """Number of the newest report; the first is 1."""
        self.lost = 0
        """Reports that were dropped since there was no room."""

    @property
    def waiting_for(self) -> int:
        """Number of the newest report when it has not been taken yet, else 0."""
        return self.last if self._kept else 0

    def put(self, report: EgressReport) -> None:
        """Keep one more; the oldest goes when there is no room."""
        self.last += 1
        self._kept.append((self.last, report))
        if len(self._kept) > self._max_kept:
            self._kept.popleft()
            self.lost += 1

    def next(self, sent: int) -> list[tuple[int, EgressReport]]:
        """Those behind the number ``sent`` that may be sent now."""
        found = []
        for place, item in enumerate(self._kept):
            if place >= WINDOW:
                break
            if item[0] > sent:
                found.append(item)
        return found

    def taken(self, number: int) -> None:
        """Drop all up to ``number``: the service has taken them."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()


class ReportPublisher:
    """Pushes the reports of all runs to one connection of the service."""

    def __init__(self, owner: TaskOwner) -> None:
        self.relay_id = secrets.token_hex(8)
        """Distinguishes this process's numbers from those of another relay."""
        self._owner = owner
        self._queue = ReportQueue()
        self._fresh = asyncio.Event()
        self._pushing: asyncio.Task[None] | None = None

    @property
    def missed(self) -> bool:
        """Whether a service that has subscribed has not taken all reports."""
        return self._pushing is not None and self._queue.waiting_for > 0

    @property
    def waiting_for(self) -> int:
        """Number of the newest report when it has not been taken yet, else 0."""
        return self._queue.waiting_for

    def put(self, report: EgressReport) -> None:
        """Keep a report and push it."""
        lost = self._queue.lost
        self._queue.put(report)
        if self._queue.lost > lost == 0:
            log.warning("reports are given up: no service takes them")
        self._fresh.set()

    def taken(self, number: int) -> None:
        """The service has taken those up to ``number``."""
        self._queue.taken(number)
        self._fresh.set()

    def subscribe(self, writer: asyncio.StreamWriter) -> None:
        """Push to this connection from now on, and to no other."""
        if self._pushing is not None:
            self._pushing.cancel()
        self._pushing = self._owner.spawn(self._push(writer), name="push")

    async def _push(self, writer: asyncio.StreamWriter) -> None:
        sent = 0
        while not writer.is_closing():
            self._fresh.clear()
            batch = self._queue.next(sent)
            if not batch:
                await self._fresh.wait()
                continue
            sent = batch[-1][0]
            reports = [[number, report_to_wire(report)] for number, report in batch]
            writer.write(
                encode({"push": "egress", "relay": self.relay_id, "lost": self._queue.lost, "reports": reports})
            )
            try:
                async with asyncio.timeout(PUSH_SECONDS):
                    await writer.drain()
            except OSError:  # TimeoutError too
                writer.close()
                return
