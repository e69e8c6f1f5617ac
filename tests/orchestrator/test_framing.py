"""Framing: the same lines however the bytes are cut, and bounded memory."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import framing
from orchestrator.framing import STRING_KEEP, CriFramer, LineFramer, LogPiece


def cuts(data: bytes, positions: list[int]) -> list[bytes]:
    points = sorted({p % (len(data) + 1) for p in positions})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


def lines_of(chunks: list[bytes], **limits: int) -> list[bytes]:
    framer = LineFramer(**limits)
    return [line for chunk in chunks for line in framer.push(chunk)] + framer.flush()


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=20))
def test_lines_do_not_depend_on_the_cuts(data: bytes, positions: list[int]) -> None:
    whole = lines_of([data])
    assert lines_of(cuts(data, positions)) == whole
    assert lines_of([data[i : i + 1] for i in range(len(data))]) == whole
    assert b"\n".join(whole) + (b"\n" if data.endswith(b"\n") else b"") == data


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(json_values, st.booleans(), st.lists(st.integers(0, 2000), max_size=12))
def test_a_shortened_line_stays_json_and_does_not_depend_on_the_cuts(
    value: object, ascii_only: bool, positions: list[int]
) -> None:
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    limits = {"soft_limit": 20, "string_keep": 8, "hard_limit": 100_000}
    whole = lines_of([line + b"\n"], **limits)
    assert lines_of(cuts(line + b"\n", positions), **limits) == whole
    if len(line) <= 20:
        assert whole == [line]
    else:
        json.loads(whole[0].decode("utf-8", "replace"))


def test_a_long_string_is_cut_and_says_how_much_is_missing() -> None:
    line = json.dumps({"a": "x" * 500, "b": "kept"}).encode()
    [short] = lines_of([line + b"\n"], soft_limit=100, string_keep=10)
    obj = json.loads(short)
    assert obj == {"a": "x" * 10 + " …[cut: 490 bytes, the whole is in the run's log]", "b": "kept"}


def test_an_escape_is_never_torn() -> None:
    line = b'{"a": "' + b"\\u00e9" * 100 + b'"}'
    for keep in range(1, 20):
        [short] = lines_of([line], soft_limit=50, string_keep=keep)
        text = json.loads(short)["a"]
        assert set(text.split(" …")[0]) == {"é"}


@pytest.mark.parametrize("unit", [b"a", b'"', b'\\"', b'{"k":1},'])
def test_memory_stays_bounded_for_any_endless_line(unit: bytes) -> None:
    framer = LineFramer(soft_limit=1000, string_keep=100, hard_limit=5000)
    chunk = unit * (1000 // len(unit))
    for _ in range(200):
        assert framer.push(chunk) == []
        held = len(framer._pending) + (len(framer._long._out) if framer._long else 0)
        assert held <= 5000 + 2 * len(chunk)
    [line] = framer.flush()
    assert len(line) <= 5000


def test_a_line_of_64_mib_comes_out_as_json() -> None:
    framer = LineFramer()
    framer.push(b'{"type":"x","content":"')
    for _ in range(1024):
        assert framer.push(b"y" * 65536) == []
    [line] = framer.push(b'","after":true}\n')
    obj = json.loads(line)
    assert obj["after"] is True
    assert f"cut: {1024 * 65536 - STRING_KEEP} bytes" in obj["content"]


def test_conmon_log_pieces_are_put_together() -> None:
    log = (
        b"2026-01-02T03:04:05.123456789+00:00 stdout P abc\n"
        b"2026-01-02T03:04:05.2+00:00 stderr F oops\n"
        b"2026-01-02T03:04:05.3+00:00 stdout F d e f\n"
        b"2026-01-02T03:04:05.4+00:00 stdout F \n"
        b"2026-01-02T03:04:05.5+00:00 stdout P tail\n"
    )
    expected = [
        LogPiece("stdout", "2026-01-02T03:04:05.123456789+00:00", b"abc"),
        LogPiece("stderr", "2026-01-02T03:04:05.2+00:00", b"oops\n"),
        LogPiece("stdout", "2026-01-02T03:04:05.3+00:00", b"d e f\n"),
        LogPiece("stdout", "2026-01-02T03:04:05.4+00:00", b"\n"),
        LogPiece("stdout", "2026-01-02T03:04:05.5+00:00", b"tail"),
    ]
    rng = random.Random(7)
    for size in (1, 3, len(log), *(rng.randrange(1, 90) for _ in range(20))):
        framer = CriFramer()
        got = [piece for i in range(0, len(log), size) for piece in framer.feed(log[i : i + size])]
        assert got == expected


def test_a_line_that_conmon_did_not_write_is_not_lost() -> None:
    assert CriFramer().feed(b"garbage here\n") == [LogPiece("stderr", "", b"garbage here\n")]


STAMP = "2026-01-02T03:04:{:012.9f}+02:00 "


def frame(second: float, data: bytes, mark: str = "F", stream: str = "stdout") -> bytes:
    return STAMP.format(second).encode() + f"{stream} {mark} ".encode() + data + b"\n"


def pieces_of(chunks: list[bytes]) -> list[LogPiece]:
    framer = CriFramer()
    return [piece for chunk in chunks for piece in framer.feed(chunk)] + framer.flush()


def test_a_frame_behind_a_torn_one_is_a_frame_of_its_own() -> None:
    log = (
        frame(1, b"whole") + frame(2, b"the beginning of a longer line")[:-10] + frame(9, b"after") + frame(10, b"end")
    )
    pieces = pieces_of([log])
    assert [(piece.data, piece.torn) for piece in pieces] == [
        (b"whole\n", False),
        (b"the beginning of a lo\n", True),
        (b"after\n", False),
        (b"end\n", False),
    ]
    assert pieces[2].ts == STAMP.format(9).strip()
    assert pieces_of([log[i : i + 1] for i in range(len(log))]) == pieces


def test_a_header_that_was_torn_itself_does_not_take_the_next_frame_with_it() -> None:
    for length in range(1, 46):
        [first, last] = pieces_of([frame(1, b"x")[:length] + frame(2, b"after", stream="stderr")])
        assert first.torn
        assert last == LogPiece("stderr", STAMP.format(2).strip(), b"after\n"), length


def test_output_that_quotes_such_a_log_is_left_whole() -> None:
    """What is quoted was written before; so an agent may read the logs of other containers."""
    quoted = frame(5, b"of another container").rstrip() + b" and stdout F more"
    assert pieces_of([frame(6, quoted)]) == [LogPiece("stdout", STAMP.format(6).strip(), quoted + b"\n")]


def test_the_end_of_a_log_that_a_power_loss_left() -> None:
    assert pieces_of([frame(1, b"a") + b"\0" * 5000]) == pieces_of([frame(1, b"a")])
    *_, last = pieces_of([frame(1, b"a") + frame(2, b"half of it")[:-6] + b"\0" * 5000])
    assert last == LogPiece("stdout", STAMP.format(2).strip(), b"half \n", torn=True)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 400), st.booleans())
def test_a_line_without_an_end_is_taken_in_bounded_pieces(positions: list[int], more: int, ended: bool) -> None:
    limit, framing.LOG_LINE_MAX = framing.LOG_LINE_MAX, 100
    try:
        data = frame(1, b"x" * 300 + b"y" * more)[: None if ended else -1] + frame(2, b"next")
        whole = pieces_of([data])
        assert pieces_of(cuts(data, positions)) == whole
        assert pieces_of([data[i : i + 1] for i in range(len(data))]) == whole
        assert max(len(piece.data) for piece in whole) <= 101
    finally:
        framing.LOG_LINE_MAX = limit
