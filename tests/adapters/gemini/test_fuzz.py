"""Whatever a line is turned into, the parser neither crashes nor says anything that is not in the tables."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.gemini import GeminiAdapter
from orchestrator.testing.conformance import Recording, load_all, play
from orchestrator.testing.kit import in_tables, one_terminal
from tests.adapters.registered import RECORDINGS

SEEDS = [
    json.loads(line)
    for recording in load_all(RECORDINGS / "gemini")
    if recording.name in {"tool", "tools2", "badtool", "badkey", "broken", "429", "mcp", "edit"}
    for line in recording.lines
]

odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["assistant", "user", "result", "error", "tool_use", "tool_result", "init", "message", "success"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    if not path:
        return new
    copy = value.copy()
    if drop and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(copy[path[0]], path[1:], new, drop=drop)
    return copy


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
@given(lines=st.lists(mutated(), max_size=6), code=st.sampled_from([0, 1, 42, 127, 144, 173, None]))
def test_mutated_lines(lines: list[bytes], code: int | None) -> None:
    events = play(GeminiAdapter(), Recording(name="fuzz", stdout=b"".join(lines), exit_code=code, stderr_tail="x"))
    one_terminal(events, "fuzz")
    in_tables(events)
