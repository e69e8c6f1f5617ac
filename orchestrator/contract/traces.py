"""Traces: what became of a run, step by step, for whoever collects such things.

A trace has ids, times and numbers in it; never what was said, a key, a path or a user's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]{0,200})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of a run.  Times are Unix nanoseconds."""

    name: str
    began: int
    ended: int
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """A run that has ended."""

    run_id: str
    traceparent: str | None
    """The W3C trace context that the run was asked for in, unchecked."""
    began: int
    ended: int
    failed: bool
    attributes: Mapping[str, str | int | bool]
    steps: tuple[Step, ...] = field(default=())


class Parent(NamedTuple):
    """The span of somebody else that a run belongs under."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(text: str | None) -> Parent | None:
    """A W3C ``traceparent``, of its version 00 or a later one; None: there is none that counts."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    parent = Parent(int(match[2], 16), int(match[3], 16), sampled=bool(int(match[4], 16) & 1))
    return parent if parent.trace_id and parent.span_id else None


class Traces(Protocol):
    """Where traces go."""

    @property
    def enabled(self) -> bool:
        """Whether anybody wants them."""
        ...

    def run_ended(self, trace: RunTrace) -> None:
        """Take one.  Never blocks and never raises; sending it is tried in the background."""
        ...

    async def aclose(self) -> None:
        """Send what is waiting, for a moment at most."""
        ...


class NoTraces:
    """Nobody wants traces; implements ``Traces``."""

    enabled: Final = False

    def run_ended(self, trace: RunTrace) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""


NO_TRACES: Final = NoTraces()
