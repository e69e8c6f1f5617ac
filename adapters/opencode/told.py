"""What has been told of a run: each part once, although the lines of it come twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

from orchestrator.events import Tokens

TEXT_KEEP = 4 * 1024 * 1024
"""Characters kept of the newest message."""


@dataclass(slots=True)
class Turn:
    """A message of the model while it is told.  A provider that is asked again begins it anew."""

    attempt: int = 0
    open_step: str | None = None
    """Part id of the step that has begun and not ended."""


@dataclass(slots=True)
class Messages:
    """The ids under which messages are told: OpenCode's own, with a number when the answer has begun again."""

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
            if is_number(count):
                self._sums[name] = self._sums.get(name, 0) + max(0, round(count))
        if is_number(part.get("cost")):
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


class KeptText:
    """The text of the newest message, bounded."""

    def __init__(self) -> None:
        self._message_id = ""
        self._parts: list[str] = []
        self._size = 0

    def add(self, message_id: str, text: str) -> None:
        """A piece; one of another message begins anew."""
        if message_id != self._message_id:
            self._message_id, self._parts, self._size = message_id, [], 0
        room = TEXT_KEEP - self._size
        if room > 0:
            self._parts.append(text[:room])
        self._size += len(text)

    def join(self) -> str:
        """The text, cut and marked when it was longer than ``TEXT_KEEP``."""
        cut = self._size - TEXT_KEEP
        return "".join(self._parts) + (f" …[cut: {cut} characters, the whole is in the run's log]" if cut > 0 else "")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether ``value`` can be counted with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def whole(value: Any) -> str:
    """``value`` if it is a string; TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is an object; TypeError otherwise."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value
