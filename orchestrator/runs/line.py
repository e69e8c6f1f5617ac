"""The line: first come, first served, with a cap on how many run at once and one run at a time per subagent.

A run whose subagent is busy keeps its place and lets those behind it pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """One place in the line."""

    run_id: str
    subagent_id: str


class Line:
    """Who waits, who runs.  ``on_admit`` is called for each run that may start; it must not block."""

    def __init__(self, *, max_concurrent: int, on_admit: Callable[[Waiting], None]) -> None:
        self._max_concurrent = max_concurrent
        self._on_admit = on_admit
        self._waiting: list[Waiting] = []
        self._active: dict[str, str] = {}
        self._open = True

    def join(self, entry: Waiting, *, first: bool = False) -> None:
        """Take a place at the end (``first``: at the front, for a run that had been admitted before a restart)."""
        self._waiting.insert(0 if first else len(self._waiting), entry)

    def adopt(self, entry: Waiting) -> None:
        """Count a run as running although it never waited here (it was taken over)."""
        self._active[entry.run_id] = entry.subagent_id

    def leave(self, run_id: str) -> bool:
        """Give up a place; False when the run was not waiting."""
        before = len(self._waiting)
        self._waiting = [entry for entry in self._waiting if entry.run_id != run_id]
        return len(self._waiting) != before

    def done(self, run_id: str) -> None:
        """A running run has ended; the next ones may start."""
        self._active.pop(run_id, None)
        self.admit()

    def admit(self) -> None:
        """Let in as many as may start now."""
        while self._open and len(self._active) < self._max_concurrent:
            entry = next(self._startable(), None)
            if entry is None:
                return
            self._waiting.remove(entry)
            self._active[entry.run_id] = entry.subagent_id
            self._on_admit(entry)

    def close(self) -> None:
        """Admit nobody any more."""
        self._open = False

    def position(self, run_id: str) -> int | None:
        """How many are ahead of a waiting run; None when it does not wait."""
        return next((i for i, entry in enumerate(self._waiting) if entry.run_id == run_id), None)

    def _startable(self) -> Iterator[Waiting]:
        busy = set(self._active.values())
        for entry in self._waiting:
            if entry.subagent_id not in busy:
                yield entry
            busy.add(entry.subagent_id)  # a later run of the same subagent must not overtake

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The line, front first."""
        return tuple(self._waiting)

    @property
    def active(self) -> frozenset[str]:
        """The runs that have been admitted and have not ended."""
        return frozenset(self._active)
