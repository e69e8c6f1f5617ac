"""The steps that runs go through, remembered until their traces are handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from orchestrator.contract.traces import NO_TRACES, RunTrace, Step, Traces

StepName: TypeAlias = Literal["credentials", "workspace", "start", "teardown"]


class Trails:
    """Of all runs that are under way; without anybody who wants traces nothing is kept."""

    def __init__(self, traces: Traces = NO_TRACES) -> None:
        self._traces = traces
        self._steps: dict[str, list[Step]] = {}

    @property
    def enabled(self) -> bool:
        """Whether anybody wants traces."""
        return self._traces.enabled

    @contextmanager
    def step(self, run_id: str, name: StepName) -> Iterator[None]:
        """What happens inside the block is this step of the run; it has failed when the block raises."""
        if not self._traces.enabled:
            yield
            return
        began, failed = time.time_ns(), True
        try:
            yield
            failed = False
        finally:
            step = Step(name=name, began=began, ended=time.time_ns(), failed=failed)
            self._steps.setdefault(run_id, []).append(step)

    def taken(self, run_id: str) -> tuple[Step, ...]:
        """The steps of a run, which are forgotten here."""
        return tuple(self._steps.pop(run_id, ()))

    def hand_over(self, trace: RunTrace) -> None:
        """A run has ended."""
        self._traces.run_ended(trace)
