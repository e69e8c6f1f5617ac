"""Log to journal: reads a sandbox's log as it grows, decodes it, appends what is new.

What a service before this one has journalled is skipped by count: the decoder is deterministic, so the first N events
of a re-read log are the first N in the journal.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from orchestrator.events import MessageDelta, SessionStarted, Status, ToolUse
from orchestrator.runs.state import advance
from orchestrator.runs.stream.decoder import LogDecoder, Stamped
from orchestrator.runs.stream.journal import Entry, Journal
from orchestrator.runs.stream.log_tail import LogTail, LogWatcher
from orchestrator.system.times import now


class Pump:
    """One run's log, read into the journal.  ``on_progress`` is called after every chunk.

    ``announced``: the journal has it already that the run is running.

    Once more than ``output_max_bytes`` of output were read it ends: a flood that was written before the agent could be
    stopped stays in the log alone.
    """

    def __init__(
        self,
        *,
        run_id: str,
        decoder: LogDecoder,
        journal: Journal,
        logs: LogWatcher,
        announced: bool,
        output_max_bytes: int,
        on_progress: Callable[[], None],
    ) -> None:
        self._run_id = run_id
        self._decoder = decoder
        self._journal = journal
        self._logs = logs
        self.announced = announced
        self._output_max_bytes = output_max_bytes
        self._on_progress = on_progress
        self._skip = 0
        self._complete = False
        self._tail: LogTail | None = None
        self.last_output = asyncio.get_running_loop().time()
        """Loop time of the last bytes."""
        self.session_id: str | None = None
        self.conversed = False
        """Whether the agent has said or done anything: only then is there a session worth resuming."""

    async def run(self, log_path: Path) -> None:
        """Read the log until ``finish`` was called and its end is reached, or there was more output than is allowed.

        Raises StorageError when it cannot be read.
        """
        self._skip = await self._journal.agent_events(self._run_id)
        self._tail = self._logs.tail(log_path)
        if self._complete:
            self._tail.finish()
        try:
            async with aclosing(self._tail.chunks()) as chunks:
                async for chunk in chunks:
                    await self._take(chunk)
                    if self._decoder.output_bytes > self._output_max_bytes:
                        return
        finally:
            self._logs.release(self._tail)

    def finish(self) -> None:
        """The sandbox has ended, so nothing more will be written to the log: ``run`` ends after what is there."""
        self._complete = True
        if self._tail is not None:
            self._tail.finish()

    async def _take(self, chunk: bytes) -> None:
        stamped = self._decoder.feed(chunk)
        self.last_output = asyncio.get_running_loop().time()
        update: dict[str, object] = {}
        entries = self._fresh(stamped)
        if self._decoder.has_output and not self.announced:
            self.announced = True
            update["state"] = advance("starting", "first_output")
            entries.insert(0, Entry(now(), "orchestrator", Status(phase="running")))
        if entries:
            await self.append(entries, update)
        self._on_progress()

    def closing(self, exit_code: int | None) -> list[Entry]:
        """The last entries; the terminal one is the last.  Nothing is appended here.

        The terminal one is never in the journal already.  When the journal has more than the log gives (somebody cut
        the log; the machine went down before it was on the disk), it is all that there is.
        """
        *earlier, last = self._decoder.close(exit_code)
        fresh = self._fresh(earlier)
        self._skip = 0
        return [*fresh, *self._fresh([last])]

    async def append(
        self,
        entries: Sequence[Entry],
        update: Mapping[str, object] | None = None,
        *,
        also: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        """Append, and try again for as long as it takes when the disk is full: the log still has everything."""
        await self._journal.insist(self._run_id, entries, update, also=also)

    def _fresh(self, stamped: list[Stamped]) -> list[Entry]:
        for _, event in stamped:
            if isinstance(event, SessionStarted):
                self.session_id = event.session_id
            elif isinstance(event, MessageDelta | ToolUse):
                self.conversed = True
        skipped = min(self._skip, len(stamped))
        self._skip -= skipped
        return [Entry(ts or now(), "agent", event) for ts, event in stamped[skipped:]]
