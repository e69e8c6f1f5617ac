"""The life of a run."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.contract.runs import RunState
from orchestrator.events import Completed, Error, Tokens
from orchestrator.runs.state import IllegalStepError, Step, advance, outcome_of

STATES: tuple[RunState, ...] = ("queued", "starting", "running", "finished")
STEPS: tuple[Step, ...] = ("admitted", "first_output", "requeued", "ended")
LEGAL: dict[tuple[RunState, Step], RunState] = {
    ("queued", "admitted"): "starting",
    ("queued", "ended"): "finished",
    ("starting", "first_output"): "running",
    ("starting", "requeued"): "queued",
    ("starting", "ended"): "finished",
    ("running", "ended"): "finished",
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(STATES, STEPS)))
def test_every_step_from_every_state(state: RunState, step: Step) -> None:
    if (state, step) in LEGAL:
        assert advance(state, step) == LEGAL[state, step]
    else:
        with pytest.raises(IllegalStepError):
            advance(state, step)


def test_the_last_event_decides_the_outcome() -> None:
    assert outcome_of(Completed(final_text="", tokens=Tokens(input=0, output=0), duration_ms=1)) == "completed"
    assert outcome_of(Error(reason="cancelled", message="")) == "cancelled"
    assert outcome_of(Error(reason="timeout", message="")) == "failed"
