"""The conversation so far, as a part of the prompt: for a backend whose CLI cannot resume a session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.contract.runs import RunRecord

RECAP_RUNS = 50
"""Of so many earlier runs."""
RECAP_MAX_CHARS = 24_000
"""All in all.  The newest come first when not all find room; below 128 KiB, which is what an argument may have."""
_CUT = " …[cut]"


def with_recap(earlier: Sequence[RunRecord], query: str) -> str:
    """``query`` behind what was said in the ``earlier`` runs (newest first); alone when there are none."""
    turns: list[str] = []
    room = RECAP_MAX_CHARS
    for run in earlier:
        answer = run.final_text if run.outcome == "completed" else None
        turn = f"User: {run.query}\n\nYou: {answer or '(no answer: the run did not complete)'}"
        if len(turn) > room:
            if room > len(_CUT):
                turns.append(turn[: room - len(_CUT)] + _CUT)
            break
        turns.append(turn)
        room -= len(turn)
    if not turns:
        return query
    return "\n\n".join(
        (
            "This conversation has been going on for a while. What was said so far:",
            *reversed(turns),
            "That was the conversation so far. Go on with it. What the user says now:",
            query,
        )
    )
