"""The messages of a run and what they have used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

from orchestrator.adapterkit.members import is_number
from orchestrator.events import Tokens


@dataclass(slots=True)
class Turn:
    """A message of the model while it comes in.  A provider that is asked again begins it anew."""

    attempt: int = 0
    open_step: str | None = None
    """Part id of the step that has begun and not ended."""


@dataclass(slots=True)
class Messages:
    """The ids of messages in events: OpenCode's own, with a number when the answer has begun again."""

    _turns: dict[str, Turn] = field(default_factory=dict)
    _parts: dict[str, str] = field(default_factory=dict)

    def step_begins(self, message: str, part: str) -> int:
        """How often the answer has begun by now."""
        turn = self._turns.setdefault(message, Turn())
        if turn.attempt == 0 or turn.open_step is not None:
            turn.attempt += 1
        turn.open_step = part
        return turn.attempt

    def step_ends(self, message: str) -> None:
        """What follows is no second attempt."""
        self._turns.setdefault(message, Turn(attempt=1)).open_step = None

    def id_of(self, message: str, part: str) -> str:
        """The id for a part, which stays what it was when the part was first seen."""
        attempt = self._turns[message].attempt if message in self._turns else 1
        return self._parts.setdefault(part, message if attempt <= 1 else f"{message}.{attempt}")


class Usage:
    """Counts and costs summed over the steps of a run, those of sub-agents too."""

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        self._cost = 0.0
        self.turns = 0

    def add(self, part: dict[str, Any]) -> None:
        """One ``step-finish``."""
        tokens = part.get("tokens") or {}
        cache = tokens.get("cache") or {}
        counts = {
            "input": tokens.get("input"),
            "output": tokens.get("output"),
            "reasoning": tokens.get("reasoning"),
            "cache_read": cache.get("read"),
            "cache_write": cache.get("write"),
        }
        for name, count in counts.items():
            if is_countable(count):
                self._sums[name] = self._sums.get(name, 0) + max(0, round(count))
        if is_countable(part.get("cost")):
            self._cost += part["cost"]

    def tokens(self) -> Tokens:
        """The sums.  OpenCode counts reasoning apart from the output; ours is all that the model wrote."""
        return Tokens(
            input=self._sums.get("input", 0),
            output=self._sums.get("output", 0) + self._sums.get("reasoning", 0),
            cache_read=self._sums.get("cache_read"),
            cache_write=self._sums.get("cache_write"),
            reasoning=self._sums.get("reasoning"),
        )

    @property
    def cost_usd(self) -> float | None:
        """None when OpenCode knows no prices of the model: it says 0 then."""
        return round(self._cost, 9) or None


def is_countable(value: Any) -> TypeGuard[int | float]:
    """Whether ``value`` is a number that can be counted and kept."""
    return is_number(value) and abs(value) < 2**63
