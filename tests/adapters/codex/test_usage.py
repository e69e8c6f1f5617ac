from typing import Any

import pytest

from adapters.codex.usage import tokens_of
from orchestrator.events import Tokens

USAGE = {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3, "reasoning_output_tokens": 1}


@pytest.mark.parametrize(
    ("earlier", "tokens"),
    [
        (None, Tokens(input=10, output=3, cache_read=4, reasoning=1)),
        (Tokens(input=0, output=0), Tokens(input=10, output=3, cache_read=4, reasoning=1)),
        (Tokens(input=6, output=2, cache_read=4), Tokens(input=4, output=1, cache_read=0, reasoning=1)),
        (Tokens(input=10, output=3, cache_read=4, reasoning=1), Tokens(input=0, output=0, cache_read=0, reasoning=0)),
        # A count that has begun anew.
        (Tokens(input=6, output=9), Tokens(input=10, output=3, cache_read=4, reasoning=1)),
        (Tokens(input=6, output=2, cache_write=1), Tokens(input=10, output=3, cache_read=4, reasoning=1)),
    ],
)
def test_what_was_told_before_is_taken_off(earlier: Tokens | None, tokens: Tokens) -> None:
    assert tokens_of(USAGE, earlier) == tokens


@pytest.mark.parametrize("usage", [None, [], {}, {"input_tokens": "10", "output_tokens": True}, {"input_tokens": -1}])
def test_no_counts_are_none(usage: Any) -> None:
    assert tokens_of(usage, None) == Tokens(input=0, output=0)
