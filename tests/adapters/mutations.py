"""Lines of recordings with something in them dropped, replaced or torn."""

import json
from typing import Any

from hypothesis import strategies as st

from orchestrator.testing.conformance import load_all
from tests.adapters.registered import RECORDINGS


def seeds(backend: str, names: set[str]) -> list[Any]:
    """The lines of these recordings."""
    return [
        json.loads(line)
        for recording in load_all(RECORDINGS / backend)
        if recording.name in names
        for line in recording.lines
    ]


def _odd(words: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(words),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to ``value`` and to everything in it."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any = None, *, drop: bool = False) -> Any:
    """A copy with another value (or, ``drop``, nothing) there."""
    if not path:
        return new
    copy = value.copy()
    if drop and len(path) == 1:
        del copy[path[0]]
    elif len(path) == 1:
        copy[path[0]] = new
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], new, drop=drop)
    return copy


def mutated(lines: list[Any], words: list[str]) -> st.SearchStrategy[bytes]:
    """One of ``lines`` with up to three changes; ``words`` are those that mean something to the parser."""
    return _mutated(lines, _odd(words))


@st.composite
def _mutated(draw: st.DrawFn, lines: list[Any], odd: st.SearchStrategy[Any]) -> bytes:
    """Strategies that are made anew for each draw would take far longer than what is tested."""
    line = draw(st.sampled_from(lines))
    for _ in range(draw(st.integers(0, 3))):
        if not isinstance(line, dict | list):
            break
        there = places(line)
        line = changed(line, there[draw(st.integers(0, len(there) - 1))], draw(odd), drop=draw(st.booleans()))
    raw = json.dumps(line).encode()
    if draw(st.integers(0, 9)) == 0:
        raw = raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=4))
    return raw + b"\n"
