"""The journal: the numbered record of every run's events, and how readers follow it.

Readers pull: each asks for what lies behind the last number it has got, and waits for a signal when there is nothing.
So a reader that is slow or dead costs the run and the other readers nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from orchestrator.contract.runs import RunState
from orchestrator.errors import NotFoundError, StorageError
from orchestrator.events import AgentEvent, EventRecord, Source
from orchestrator.runs.storage.database import Database, to_json
from orchestrator.system.sqlite import DamagedError

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds between two tries to write to a full disk."""
PAGE_EVENTS = 500
PAGE_BYTES = 4 * 1024 * 1024


class Entry(NamedTuple):
    """An event on its way into the journal."""

    ts: str
    source: Source
    event: AgentEvent


class Appended(NamedTuple):
    """What an append has stored, and about which run: its columns as they were before."""

    run_id: str
    backend: str
    tier: int
    state: RunState
    created_at: str
    started_at: str | None
    traceparent: str | None
    entries: Sequence[Entry]
    update: Mapping[str, object]
    seconds: float
    """What it took."""


class Page(NamedTuple):
    """Some events; ``complete``: the run has ended and these are the last."""

    records: list[EventRecord]
    complete: bool


class Journal:
    """Appends, reads and signals.  ``on_append`` is called for what was stored; it must not block or raise."""

    def __init__(self, database: Database, on_append: Callable[[Appended], None] | None = None) -> None:
        self._database = database
        self._on_append = on_append
        self._signals: dict[str, asyncio.Event] = {}
        self._closed = False
        self._stalled = 0

    @property
    def stalled(self) -> bool:
        """Whether something waits for the disk to take it."""
        return self._stalled > 0

    async def insist(
        self,
        run_id: str,
        entries: Sequence[Entry],
        update: Mapping[str, object] | None = None,
        *,
        also: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        """``append``, tried again for as long as the disk is full or the database locked.

        Raises DamagedError: that will not pass.
        """
        pause, tries = FIRST_PAUSE, 0
        try:
            while True:
                try:
                    await self.append(run_id, entries, update, also=also)
                except DamagedError:
                    raise
                except StorageError as error:
                    self._stalled += not tries
                    tries += 1
                    log.warning("run %s: %s; trying again in %.1f s", run_id, error.message, pause)
                    await asyncio.sleep(pause)
                    pause = min(LONGEST_PAUSE, pause * 2)
                else:
                    return
        finally:
            self._stalled -= tries > 0

    async def append(
        self,
        run_id: str,
        entries: Sequence[Entry],
        update: Mapping[str, object] | None = None,
        *,
        when: RunState | None = None,
        also: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        """Number and store ``entries`` and change columns of the run with them, all or nothing.

        ``when``: only if the run is in this state.  ``also``: what changes with it.  A finished run takes no more
        events, whoever brings them; the end of a run is on the disk when this returns.
        """

        def work(connection: sqlite3.Connection) -> sqlite3.Row | None:
            row: sqlite3.Row | None = connection.execute(
                "SELECT last_seq, backend, tier, state, created_at, started_at, traceparent FROM runs WHERE run_id = ?",
                (run_id,),
            ).fetchone()
            if row is None:
                raise NotFoundError(f"there is no run {run_id}")
            if row["state"] == "finished" or (when is not None and row["state"] != when):
                return None
            first: int = row["last_seq"] + 1
            connection.executemany(
                "INSERT INTO events (run_id, seq, ts, kind, source, parent_tool_call_id, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        run_id,
                        seq,
                        entry.ts,
                        entry.event.kind,
                        entry.source,
                        entry.event.parent_tool_call_id,
                        to_json(entry.event.data()),
                    )
                    for seq, entry in enumerate(entries, first)
                ),
            )
            last = first + len(entries) - 1
            columns = {"last_seq": last, **(update or {})}
            assignments = ", ".join(f"{name} = ?" for name in columns)
            connection.execute(f"UPDATE runs SET {assignments} WHERE run_id = ?", (*columns.values(), run_id))  # noqa: S608 -- column names are ours
            if also is not None:
                also(connection)
            return row

        began = time.monotonic()
        row = await self._database.call(work, durable=update is not None and update.get("state") == "finished")
        if row is not None and self._on_append is not None:
            self._on_append(
                Appended(
                    run_id,
                    row["backend"],
                    row["tier"],
                    row["state"],
                    row["created_at"],
                    row["started_at"],
                    row["traceparent"],
                    entries,
                    update or {},
                    time.monotonic() - began,
                )
            )
        self.signal(run_id)

    async def agent_events(self, run_id: str) -> int:
        """How many of the agent's events are in the journal: so many must be skipped when the log is read again."""
        return await self._database.call(
            lambda connection: int(
                connection.execute(
                    "SELECT count(*) FROM events WHERE run_id = ? AND source = 'agent'", (run_id,)
                ).fetchone()[0]
            )
        )

    async def warned(self, run_id: str) -> set[str]:
        """The limits that the run was warned of."""
        query = (
            "SELECT json_extract(data, '$.limit') AS name FROM events WHERE run_id = ? AND source = 'orchestrator'"
            " AND kind = 'status' AND json_extract(data, '$.phase') = 'limit_warning'"
        )
        return await self._database.call(
            lambda connection: {str(row["name"]) for row in connection.execute(query, (run_id,))}
        )

    async def read(self, run_id: str, after: int) -> Page:
        """The events behind ``after``, as many as a page takes."""

        def work(connection: sqlite3.Connection) -> Page:
            run = connection.execute(
                "SELECT subagent_id, backend, state, last_seq FROM runs WHERE run_id = ?", (run_id,)
            ).fetchone()
            if run is None:
                return Page([], complete=True)
            page: list[EventRecord] = []
            size = 0
            rows = connection.execute(
                "SELECT * FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?", (run_id, after, PAGE_EVENTS)
            )
            for row in rows:
                page.append(_record(row, run))
                size += len(row["data"])
                if size > PAGE_BYTES:
                    break
            last = page[-1].seq if page else after
            return Page(page, complete=run["state"] == "finished" and last >= run["last_seq"])

        return await self._database.call(work)

    async def follow(self, run_id: str, *, after: int, follow: bool) -> AsyncGenerator[EventRecord, None]:
        """Events behind ``after``, and with ``follow`` those to come, until the terminal one or the service stops."""
        while True:
            signal = self._signals.setdefault(run_id, asyncio.Event())
            page = await self.read(run_id, after)
            for record in page.records:
                yield record
                after = record.seq
            if page.complete or (not page.records and (not follow or self._closed)):
                return
            if not page.records:
                await signal.wait()

    async def until(
        self, run_id: str, timeout: float | None, look: Callable[[], Awaitable[T]], done: Callable[[T], bool]
    ) -> T:
        """What ``look`` gives once it is ``done``, or after ``timeout`` seconds, or when the service stops.

        Looks again whenever something is appended to the run.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    signal = self._signals.setdefault(run_id, asyncio.Event())
                    found = await look()
                    if done(found) or self._closed:
                        return found
                    await signal.wait()
        return await look()

    def signal(self, run_id: str) -> None:
        """Wake everybody who waits for this run."""
        if (event := self._signals.pop(run_id, None)) is not None:
            event.set()

    def close(self) -> None:
        """End all who follow, at the latest when they have read what there is."""
        self._closed = True
        for run_id in list(self._signals):
            self.signal(run_id)


def _record(row: sqlite3.Row, run: sqlite3.Row) -> EventRecord:
    return EventRecord(
        seq=row["seq"],
        ts=row["ts"],
        run_id=row["run_id"],
        subagent_id=run["subagent_id"],
        backend=run["backend"],
        kind=row["kind"],
        source=row["source"],
        parent_tool_call_id=row["parent_tool_call_id"],
        data=json.loads(row["data"]),
    )
