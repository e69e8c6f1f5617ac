"""What the tokens of a run are, when the CLI counts those of a whole thread."""

from __future__ import annotations

from typing import Any

from orchestrator.adapterkit.members import count_or_none
from orchestrator.events import Tokens

_NAMES = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cached_input_tokens",
    "cache_write": "cache_write_input_tokens",
    "reasoning": "reasoning_output_tokens",
}


def tokens_of(usage: Any, earlier: Tokens | None) -> Tokens:
    """The counts of ``usage`` less what the ``earlier`` runs of the thread have reported.

    When any count is lower than before it is not the same count that goes on, and is taken as it is.
    """
    given = usage if isinstance(usage, dict) else {}
    counts = {name: count_or_none(given.get(theirs)) for name, theirs in _NAMES.items()}
    before = earlier.to_dict() if earlier is not None else {}
    if all((counts.get(name) or 0) >= count for name, count in before.items()):
        counts = {name: None if count is None else count - before.get(name, 0) for name, count in counts.items()}
    return Tokens(
        input=counts.get("input") or 0,
        output=counts.get("output") or 0,
        cache_read=counts.get("cache_read"),
        cache_write=counts.get("cache_write"),
        reasoning=counts.get("reasoning"),
    )
