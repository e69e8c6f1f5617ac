"""Whatever a line is turned into, the parser neither crashes nor says anything that is not in the tables."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.opencode import OpenCodeAdapter
from orchestrator.testing.conformance import Recording, load_all, play
from orchestrator.testing.kit import in_tables, one_terminal
from tests.adapters.claude_code.test_fuzz import odd, places, replaced
from tests.adapters.registered import RECORDINGS

SEEDS = [json.loads(line) for recording in load_all(RECORDINGS / "opencode") if recording.name in {
    "delegate", "live-429", "live-cut", "edit", "badedit", "401", "older-tool", "older-error", "thinking"}
    for line in recording.lines]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 3))):
        if not isinstance(line, dict | list):
            break
        line = replaced(line, draw(st.sampled_from(places(line))), draw(odd), drop=draw(st.booleans()))
    raw = json.dumps(line).encode()
    if draw(st.integers(0, 9)) == 0:
        raw = raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=4))
    return raw + b"\n"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lines=st.lists(mutated(), max_size=6), code=st.sampled_from([0, 1, 127, 143, None]))
def test_mutated_lines(lines: list[bytes], code: int | None) -> None:
    events = play(OpenCodeAdapter(), Recording(name="fuzz", stdout=b"".join(lines), exit_code=code, stderr_tail="x"))
    one_terminal(events, "fuzz")
    in_tables(events)
