"""The life of a run as a pure state machine.

queued -> starting -> running -> finished.  A run may finish from every state, and only once; one whose sandbox was
not started when the service died goes back to the queue.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from orchestrator.contract.runs import Outcome, RunState
from orchestrator.events import Completed, Error, TerminalEvent

Step: TypeAlias = Literal["admitted", "first_output", "requeued", "ended"]

_NEXT: dict[tuple[RunState, Step], RunState] = {
    ("queued", "admitted"): "starting",
    ("queued", "ended"): "finished",
    ("starting", "first_output"): "running",
    ("starting", "requeued"): "queued",
    ("starting", "ended"): "finished",
    ("running", "ended"): "finished",
}


class IllegalStepError(RuntimeError):
    """A bug of ours: the step does not exist from this state."""


def advance(state: RunState, step: Step) -> RunState:
    """The state after ``step``.  Raises IllegalStepError."""
    try:
        return _NEXT[state, step]
    except KeyError:
        raise IllegalStepError(f"a run that is {state} cannot be {step}") from None


def outcome_of(event: TerminalEvent) -> Outcome:
    """How a run with this last event ended."""
    match event:
        case Completed():
            return "completed"
        case Error(reason="cancelled"):
            return "cancelled"
        case Error():
            return "failed"
