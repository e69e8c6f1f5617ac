"""What is noted of a run with its last event.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.contract.runs import RunState
from orchestrator.events import Completed, Error, TerminalEvent
from orchestrator.runs.clock import now
from orchestrator.runs.journal import clean, to_json
from orchestrator.runs.state import advance, outcome_of


def closing_columns(
    last: TerminalEvent, *, state: RunState, exit_code: int | None, measured: Mapping[str, Any]
) -> dict[str, object]:
    """The columns of the run; ``usage`` is what was ``measured`` and what the CLI tells."""
    usage = dict(measured)
    columns: dict[str, object] = {
        "state": advance(state, "ended"),
        "outcome": outcome_of(last),
        "finished_at": now(),
        "exit_code": exit_code,
    }
    match last:
        case Completed():
            usage |= {"tokens": last.tokens.to_dict(), "cost_usd": last.cost_usd, "turns": last.turns}
            columns |= {"final_text": clean(last.final_text), "error": None}
        case Error():
            usage |= {k: v for k, v in last.details.items() if k in {"tokens", "cost_usd", "turns"}}
            columns["error"] = to_json(last.data())
    columns["usage"] = to_json(usage)
    return columns
