"""Lines of recordings with something in them dropped, replaced or torn."""

import json
from typing import Any

from hypothesis import strategies as st

from orchestrator.testing.conformance import load_all
from tests.adapters.registered import RECORDINGS


def seeds(backend: str, names: set[str]) -> list[Any]:
    """The lines of these recordings."""
    return [json.loads(line) for recording in load_all(RECORDINGS / backend) if recording.name in names
            for line in recording.lines]  # fmt: skip


def _odd(words: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(words),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    )


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in _places(child, (*path, key)))]


def _replaced(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    if not path:
        return new
    copy = value.copy()
    if drop and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _replaced(copy[path[0]], path[1:], new, drop=drop)
    return copy


@st.composite
def mutated(draw: st.DrawFn, lines: list[Any], words: list[str]) -> bytes:
    """One of ``lines`` with up to three changes; ``words`` are those that mean something to the parser."""
    line = draw(st.sampled_from(lines))
    for _ in range(draw(st.integers(0, 3))):
        if not isinstance(line, dict | list):
            break
        line = _replaced(line, draw(st.sampled_from(_places(line))), draw(_odd(words)), drop=draw(st.booleans()))
    raw = json.dumps(line).encode()
    if draw(st.integers(0, 9)) == 0:
        raw = raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=4))
    return raw + b"\n"
