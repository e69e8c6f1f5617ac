"""Traces in a list."""

from __future__ import annotations

from orchestrator.contract.traces import RunTrace


class FakeTraces:
    """Implements ``Traces``."""

    def __init__(self) -> None:
        self.enabled = True
        self.traces: list[RunTrace] = []
        self.closed = False

    def run_ended(self, trace: RunTrace) -> None:
        self.traces.append(trace)

    async def aclose(self) -> None:
        self.closed = True
