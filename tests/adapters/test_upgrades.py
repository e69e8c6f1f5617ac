"""A CLI that prints other things than it did: whatever the change, nothing vanishes and every run has one end."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.adapterkit.parsing import DEPTH_MAX, JsonLinesParser
from orchestrator.events import AgentEvent, Completed, Error, Status
from orchestrator.runs.stream.decoder import LogDecoder
from orchestrator.testing.kit import in_tables, one_terminal
from orchestrator.testing.recordings import Recording, load_all, play
from tests.adapters.mutations import changed, places
from tests.adapters.registered import RECORDINGS, adapters

ADAPTERS = {name: made() for name, made in adapters().items()}
STREAMING = [name for name, adapter in ADAPTERS.items() if adapter.supports_stream_json]
RAW = {
    "@deep@": b"[" * 5000 + b"]" * 5000,
    "@nested@": b'{"a":' * (DEPTH_MAX - 3) + b"1" + b"}" * (DEPTH_MAX - 3),
    "@digits@": b"9" * 5000,
    "@huge@": b"9" * 400,
    "@float@": b"1e308",
    "@infinite@": b"1e999",
    "@nan@": b"NaN",
    "@lone@": b'"\\ud83d and \\udc00"',
    "@nul@": b'"\\u0000\\u001b[2J"',
    "@bytes@": b'"\xff\xfe\x80"',
    "@long@": b'"' + b"l" * 70_000 + b'"',
}
"""Values that cannot be written by way of ``json.dumps``."""
ODD: list[Any] = [None, True, False, 0, -1, 2.5, "", "x", [], {}, [None], ["x"], {"x": None}, [[]], [{}], *RAW]


def line_of(value: Any) -> bytes:
    raw = json.dumps(value).encode()
    for name, odd in RAW.items():
        raw = raw.replace(b'"' + name.encode() + b'"', odd)
    return raw + b"\n"


def objects(recording: Recording) -> list[Any]:
    found = []
    for line in recording.lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(line.decode("utf-8", "replace"))
    return found


def at_place(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


CASES = {name: [(one, objects(one)) for one in load_all(RECORDINGS / name)] for name in ADAPTERS}


@st.composite
def upgraded(draw: st.DrawFn, name: str) -> tuple[list[bytes], int | None]:
    """A recording with up to four changes, and an exit code."""
    recording, values = draw(st.sampled_from(CASES[name]))
    values = list(values)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(values)))
        how = draw(st.sampled_from(["value", "value", "value", "drop", "rename", "insert", "again", "without", "swap"]))
        if how == "insert" or at == len(values):
            new = draw(
                st.sampled_from([{"type": "brand.new", "data": {"text": "t"}}, {}, {"type": None}, [], "text", 7])
            )
            values.insert(at, new)
        elif how == "again":
            values.insert(draw(st.integers(at, len(values))), values[at])
        elif how == "without":
            del values[at]
        elif how == "swap":
            other = draw(st.integers(0, len(values) - 1))
            values[at], values[other] = values[other], values[at]
        elif isinstance(values[at], dict) and (inside := places(values[at])[1:]):
            place = draw(st.sampled_from(inside))
            if how == "rename" and isinstance(place[-1], str):
                there = at_place(values[at], place)
                values[at] = changed(values[at], (*place[:-1], f"{place[-1]}_v2"), there)
                values[at] = changed(values[at], place, drop=True)
            else:
                values[at] = changed(values[at], place, draw(st.sampled_from(ODD)), drop=how == "drop")
    return [line_of(value) for value in values], draw(st.sampled_from([recording.exit_code, 0, 1, 137, None]))


@pytest.mark.parametrize("name", ADAPTERS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_new_release_prints(name: str, data: st.DataObject) -> None:
    lines, code = data.draw(upgraded(name))
    whole = b"".join(lines)
    events = play(ADAPTERS[name], Recording(name="new", stdout=whole, exit_code=code, stderr_tail="words"))
    one_terminal(events, "an unforeseen output")
    in_tables(events)
    size = data.draw(st.sampled_from([1, 13, 997]) if len(whole) < 50_000 else st.just(4099))
    cut = [whole[i : i + size] for i in range(0, len(whole), size)]
    again = play(ADAPTERS[name], Recording(name="new", stdout=whole, exit_code=code, stderr_tail="words"), cut)
    assert again == events, "the cutting makes a difference"


@pytest.mark.parametrize("name", STREAMING)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_line_vanishes(name: str, data: st.DataObject) -> None:
    """A line that is no object, or of a type that nobody knows, is shown; those behind the end are counted."""
    lines, code = data.draw(upgraded(name))
    parser = ADAPTERS[name].parser()
    assert isinstance(parser, JsonLinesParser)
    ended, behind = False, 0
    for line in lines:
        events = parser.feed(line)
        behind += ended
        ended = ended or any(isinstance(event, Completed | Error) for event in events)
        if not ended and line.startswith((b'{"type": "brand.new"', b"[]", b"7", b'"text', b"{}", b'{"type": null')):
            assert [event.phase for event in events if isinstance(event, Status)] == ["unparsed"], line
    parser.close(code, "")
    assert parser.ignored_lines == behind


def shapes(name: str) -> list[tuple[bytes, Any, list[bytes]]]:
    """One line of each form that tells something: the line, its value, and those before it."""
    found: dict[str, tuple[bytes, Any, list[bytes]]] = {}
    for recording, values in CASES[name]:
        parser = ADAPTERS[name].parser()
        for at, (line, value) in enumerate(zip(recording.lines, values, strict=True)):
            if parser.feed(line) and isinstance(value, dict):
                form = json.dumps([place for place in places(value) if len(place) < 5 and str(place[-1:]) != "text"])
                found.setdefault(f"{value.get('type')} {form}", (line, value, recording.lines[:at]))
    return list(found.values())


@pytest.mark.parametrize("name", STREAMING)
def test_a_line_that_told_something_tells_something_after_any_one_change(name: str) -> None:
    """But for texts and lists that are empty, in which there is nothing to tell."""
    for _line, value, before in shapes(name):
        base = ADAPTERS[name].parser()
        for earlier in before:
            base.feed(earlier)
        for place in [place for place in places(value)[1:] if len(place) < 6][:60]:
            for new in (None, "new", 7, ["new"], {"new": 1}):
                for drop in (False, True)[: 2 if new is None else 1]:
                    line = line_of(changed(value, place, new, drop=drop))
                    events = copy.deepcopy(base).feed(line)
                    in_tables(events)
                    emptied = (drop and isinstance(place[-1], int)) or told_by_another(events, base, line)
                    assert events or emptied or place[-1] == "content", (place, new, drop, line[:300])


def told_by_another(events: list[AgentEvent], base: Any, line: bytes) -> bool:
    """Held back for the end of the run: a failure that more lines may follow."""
    if events:
        return False
    with_line, without = copy.deepcopy(base), copy.deepcopy(base)
    with_line.feed(line)
    return bool(with_line.close(1, "") != without.close(1, ""))


def test_a_part_that_is_not_understood_does_not_hide_the_others() -> None:
    """Claude Code's lines hold several."""
    name = "claude-code"
    blocks: list[Any] = [
        {"type": "text", "text": "before "},
        {"type": "text", "value": "renamed"},
        {"type": "hologram"},
        {"type": "tool_use", "id": "t", "name": "Bash", "input": "no object"},
        {"type": "text", "text": "behind"},
    ]
    events = ADAPTERS[name].parser().feed(line_of({"type": "assistant", "message": {"id": "m", "content": blocks}}))
    kinds = [event.phase if isinstance(event, Status) else event.kind for event in events]
    assert kinds == ["message_delta", "unparsed", "unparsed", "unparsed", "message_delta"]
    said = ADAPTERS[name].parser().feed(line_of({"type": "user", "message": {"content": [{"type": "tool_output"}]}}))
    assert [event.phase for event in said if isinstance(event, Status)] == ["unparsed"]


def test_lines_behind_the_end_are_told_of() -> None:
    log = b"".join(
        b"2026-01-02T03:04:05.000000000+00:00 stdout F " + line
        for line in (line_of({"type": "result", "result": "done"}), line_of({"type": "assistant"}), b"\n", b"more\n")
    )
    decoder = LogDecoder(ADAPTERS["claude-code"].parser())
    *reported, last = [*decoder.feed(log), *decoder.close(0)]
    assert isinstance(last.event, Completed)
    assert [event.event.data()["stderr"] for event in reported if isinstance(event.event, Status)] == [
        "2 further lines behind the end of the answer are in the run's log only"
    ]
