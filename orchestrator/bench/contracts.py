"""The conformance kit's contracts, held against the runs that the bench has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from orchestrator.bench.recorder import MAX_STDOUT, recording_of
from orchestrator.bench.results import Evidence, Observed
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.events import AgentEvent
from orchestrator.testing.conformance import RECORDING_CONTRACTS, Subject
from orchestrator.testing.kit import calls_before_results, final_text_was_said, in_tables, one_terminal
from orchestrator.testing.recordings import from_dict

EVENTS: Final[tuple[Callable[[list[AgentEvent]], None], ...]] = (
    lambda events: one_terminal(events, "the run"),
    calls_before_results,
    final_text_was_said,
)
"""Of what a client gets."""
REVIEWED: Final = "C12"
"""Compares with events that a person has read: there are none of a run that has just been made."""
REPEATING: Final = frozenset({"C02", "C06", "C07", "C08"})
"""They read an output once for each of its lines or bytes: for short ones only."""
SHORT: Final = 32 * 1024
"""Bytes."""


def broken_contracts(adapter: BaseAdapter, evidence: Evidence) -> list[str]:
    """What is wrong with the events of the runs, and with what the adapter makes of their output.  Blocks."""
    found: list[str] = []
    for scene in evidence.scenes.values():
        for run in scene.runs:
            found += [f"{scene.name}: {problem}" for problem in [*of_events(run), *_of_output(adapter, run)]]
    return found


def of_events(run: Observed) -> list[str]:
    """What is wrong with the events that clients got.  Pure."""
    events = [from_dict(event.to_dict()) for event in run.events]
    agents = [from_dict(event.to_dict()) for event in run.events if event.source == "agent"]
    found: list[str] = []
    for check, checked in [*((check, events) for check in EVENTS), (in_tables, agents)]:
        try:
            check(checked)
        except AssertionError as error:
            found.append(str(error))
    return found


def _of_output(adapter: BaseAdapter, run: Observed) -> list[str]:
    recording = recording_of(run) if run.log is not None else None
    if recording is None or len(recording.stdout) > MAX_STDOUT:
        return []
    found: list[str] = []
    for contract in RECORDING_CONTRACTS:
        skipped = contract.number == REVIEWED or (contract.number in REPEATING and len(recording.stdout) > SHORT)
        try:
            if not skipped:
                contract(cast("Subject", adapter), recording)
        except AssertionError as error:
            found.append(f"{contract}: {error}")
    return found
