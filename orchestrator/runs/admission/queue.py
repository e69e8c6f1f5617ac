"""The queue: first come, first served, a cap on how many run at once, and claims on things that few may use at once.

A run whose claims cannot be met yet (its subagent is busy, its account is in use) keeps its place and lets those behind
it pass, unless they want the same thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

ClaimKind: TypeAlias = Literal["subagent", "home"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One run's wish to use something that at most ``capacity`` runs may use at once."""

    kind: ClaimKind
    name: str
    capacity: int = 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """One place in the queue."""

    run_id: str
    claims: tuple[Claim, ...]


class Queue:
    """Who waits, who runs.  ``on_admit`` is called for each run that may start; it must not block."""

    def __init__(self, *, max_concurrent: int, on_admit: Callable[[Waiting], None]) -> None:
        self._max_concurrent = max_concurrent
        self._on_admit = on_admit
        self._waiting: list[Waiting] = []
        self._active: dict[str, Waiting] = {}
        self._open = True

    def join(self, entry: Waiting, *, first: bool = False) -> None:
        """Take a place at the end (``first``: at the front, for a run that had been admitted before a restart)."""
        self._waiting.insert(0 if first else len(self._waiting), entry)

    def adopt(self, entry: Waiting) -> None:
        """Count a run as running although it never waited here (it was taken over)."""
        self._active[entry.run_id] = entry

    def leave(self, run_id: str) -> bool:
        """Give up a place; False when the run was not waiting."""
        before = len(self._waiting)
        self._waiting = [entry for entry in self._waiting if entry.run_id != run_id]
        return len(self._waiting) != before

    def done(self, run_id: str) -> None:
        """A running run has ended; the next ones may start."""
        self._active.pop(run_id, None)
        self.admit()

    def claim(self, run_id: str, claims: tuple[Claim, ...]) -> bool:
        """Give an admitted run other claims than it came with; False: it is back at the front, to wait for them."""
        entry = replace(self._active.pop(run_id), claims=claims)
        if self._unmet(entry, self._in_use()) is None:
            self._active[run_id] = entry
            return True
        self.join(entry, first=True)
        self.admit()
        return False

    def admit(self) -> None:
        """Let in as many as may start now."""
        while self._open and len(self._active) < self._max_concurrent:
            entry = next(self._startable(), None)
            if entry is None:
                return
            self._waiting.remove(entry)
            self._active[entry.run_id] = entry
            self._on_admit(entry)

    def close(self) -> None:
        """Admit nobody any more."""
        self._open = False

    def position(self, run_id: str) -> int | None:
        """How many are ahead of a waiting run; None when it does not wait."""
        return next((i for i, entry in enumerate(self._waiting) if entry.run_id == run_id), None)

    def waits_for(self, entry: Waiting) -> ClaimKind | None:
        """What a run in the queue (or one that would join its end) lacks besides its turn; None: nothing."""
        ahead = []
        for other in self._waiting:
            if other.run_id == entry.run_id:
                break
            ahead.append(other)
        return self._unmet(entry, self._in_use(ahead))

    def _startable(self) -> Iterator[Waiting]:
        wanted = self._in_use()
        for entry in self._waiting:
            if self._unmet(entry, wanted) is None:
                yield entry
            wanted.update(_names(entry))  # a later run that wants the same must not overtake

    def _in_use(self, also: Iterable[Waiting] = ()) -> Counter[tuple[ClaimKind, str]]:
        return Counter(name for entry in (*self._active.values(), *also) for name in _names(entry))

    @staticmethod
    def _unmet(entry: Waiting, wanted: Counter[tuple[ClaimKind, str]]) -> ClaimKind | None:
        return next((claim.kind for claim in entry.claims if wanted[claim.kind, claim.name] >= claim.capacity), None)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Front first."""
        return tuple(self._waiting)

    @property
    def active(self) -> frozenset[str]:
        """The runs that have been admitted and have not ended."""
        return frozenset(self._active)


def _names(entry: Waiting) -> Iterator[tuple[ClaimKind, str]]:
    return ((claim.kind, claim.name) for claim in entry.claims)
