"""Whatever a line is turned into, the parser neither crashes nor says anything that is not in the tables."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.opencode import OpenCodeAdapter
from orchestrator.testing.conformance import Recording, play
from orchestrator.testing.kit import in_tables, one_terminal
from tests.adapters.mutations import mutated, seeds

SEEDS = seeds(
    "opencode", {"delegate", "live-429", "live-cut", "edit", "badedit", "401", "older-tool", "older-error", "thinking"}
)
WORDS = ["delta", "text", "reasoning", "tool_use", "tool_start", "step_start", "step_finish", "retry", "message"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lines=st.lists(mutated(SEEDS, WORDS), max_size=6), code=st.sampled_from([0, 1, 127, 143, None]))
def test_mutated_lines(lines: list[bytes], code: int | None) -> None:
    events = play(OpenCodeAdapter(), Recording(name="fuzz", stdout=b"".join(lines), exit_code=code, stderr_tail="x"))
    one_terminal(events, "fuzz")
    in_tables(events)
