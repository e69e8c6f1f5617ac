"""What is counted only when somebody looks: the runs there are, and what has gone through the relay."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Final, get_args

from orchestrator.contract import metrics as m
from orchestrator.contract.gateway import Relay, Traffic
from orchestrator.contract.metrics import Metrics
from orchestrator.contract.runs import RunState
from orchestrator.errors import SandboxError
from orchestrator.runs.storage.database import Database

RELAY_SECONDS: Final = 1.5
"""What the relay has to answer: less than a scrape waits for all of it."""
_STATES = tuple(state for state in get_args(RunState) if state != "finished")


class Gauges:
    """``look`` puts the numbers of this moment.  ``accepting``: whether runs are taken now."""

    def __init__(self, *, database: Database, relay: Relay, metrics: Metrics, accepting: Callable[[], bool]) -> None:
        self._database = database
        self._accepting = accepting
        self._relay = relay
        self._metrics = metrics

    async def look(self) -> None:
        """Raises StorageError."""
        self._metrics.put(m.READY, int(self._accepting()))
        counts = await self._database.call(_count)
        for state in _STATES:
            self._metrics.put(m.RUNS, counts.get(state, 0), state=state)
        await self._ask_relay()

    async def _ask_relay(self) -> None:
        try:
            async with asyncio.timeout(RELAY_SECONDS):
                totals = await self._relay.totals()
        except (SandboxError, TimeoutError):
            totals = None
        self._metrics.put(m.RELAY_UP, int(totals is not None))
        gateway, proxy = (None, None) if totals is None else (totals.gateway, totals.egress)
        self._metrics.put(m.RELAY_REQUESTS, None if gateway is None else gateway.requests)
        for via, counts in (("gateway", gateway), ("proxy", proxy)):
            self._put_traffic(via, counts)

    def _put_traffic(self, via: str, counts: Traffic | None) -> None:
        put = self._metrics.put
        put(m.RELAY_OPEN, None if counts is None else counts.open, via=via)
        put(m.RELAY_CONNECTIONS, None if counts is None else counts.connections, via=via)
        put(m.RELAY_REFUSALS, None if counts is None else counts.refusals, via=via)
        put(m.RELAY_FAILURES, None if counts is None else counts.failures, via=via)
        put(m.RELAY_BYTES, None if counts is None else counts.bytes_up, via=via, direction="up")
        put(m.RELAY_BYTES, None if counts is None else counts.bytes_down, via=via, direction="down")


def _count(connection: sqlite3.Connection) -> dict[str, int]:
    rows = connection.execute("SELECT state, count(*) FROM runs WHERE state != 'finished' GROUP BY state")
    return {row[0]: row[1] for row in rows}
