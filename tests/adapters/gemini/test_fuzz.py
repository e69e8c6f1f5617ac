"""Whatever a line is turned into, the parser neither crashes nor says anything that is not in the tables."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.gemini import GeminiAdapter
from orchestrator.testing.conformance import Recording, play
from orchestrator.testing.kit import in_tables, one_terminal
from tests.adapters.mutations import mutated, seeds

SEEDS = seeds("gemini", {"tool", "tools2", "badtool", "badkey", "broken", "429", "mcp", "edit"})
WORDS = ["assistant", "user", "result", "error", "tool_use", "tool_result", "init", "message", "success"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lines=st.lists(mutated(SEEDS, WORDS), max_size=6), code=st.sampled_from([0, 1, 42, 127, 144, 173, None]))
def test_mutated_lines(lines: list[bytes], code: int | None) -> None:
    events = play(GeminiAdapter(), Recording(name="fuzz", stdout=b"".join(lines), exit_code=code, stderr_tail="x"))
    one_terminal(events, "fuzz")
    in_tables(events)
