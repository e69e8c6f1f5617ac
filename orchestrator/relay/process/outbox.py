"""Reports on their way to the service: numbered, kept until it has taken them, bounded while it is away.  Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from orchestrator.contract.egress import EgressReport

MAX_KEPT: Final = 10_000
WINDOW: Final = 256
"""Sent and not yet taken, at most."""


class Outbox:
    """Everything not yet taken, oldest first."""

    def __init__(self, *, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: deque[tuple[int, EgressReport]] = deque()
        self.last = 0
        """Number of the newest report; the first is 1."""
        self.lost = 0
        """Reports that had to be given up since there was no room."""

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
        """The service has taken all up to ``number``."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()
