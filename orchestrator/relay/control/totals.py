"""What has gone through the relay, of all runs together: those that have ended and those that have doors now.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.contract.gateway import DoorTotals, RelayTotals
from orchestrator.errors import InvalidRequestError

COUNTS = ("connections", "requests", "refusals", "failures", "bytes_up", "bytes_down")


@dataclass(slots=True)
class Totals:
    """Of one kind of door; ``ended`` gets the counts of a door that is closed."""

    connections: int = 0
    requests: int = 0
    refusals: int = 0
    failures: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def ended(self, door: DoorTotals) -> None:
        """Keep the counts of a closed door."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(door, name))

    def with_open(self, doors: Iterable[DoorTotals]) -> DoorTotals:
        """Together with the doors that are there."""
        now = list(doors)
        sums = {name: getattr(self, name) + sum(getattr(door, name) for door in now) for name in COUNTS}
        return DoorTotals(open=sum(door.open for door in now), **sums)


def totals_to_wire(totals: RelayTotals) -> dict[str, Any]:
    """As JSON values."""
    return asdict(totals)


def totals_from_wire(value: dict[str, Any]) -> RelayTotals:
    """Back.  Raises: InvalidRequestError."""
    try:
        return RelayTotals(gateway=DoorTotals(**value["gateway"]), egress=DoorTotals(**value["egress"]))
    except (KeyError, TypeError):
        raise InvalidRequestError("the totals lack a field or have one too many") from None
