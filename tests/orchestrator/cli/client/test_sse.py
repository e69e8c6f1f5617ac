from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.client import sse
from orchestrator.cli.client.sse import Message, SseParser

STREAM = (
    b'\xef\xbb\xbf: comment\n\nid: 1\nevent: thinking\ndata: {"a":1}\n\n'
    b"data:two\rdata: lines\r\rid: 3\r\nevent: x\r\ndata: \xc3\xbc\r\n\r\nevent: nodata\n\ndata: last, unfinished"
)
WANT = [Message("thinking", '{"a":1}', "1"), Message("message", "two\nlines", "1"), Message("x", "ü", "3")]


def test_the_format() -> None:
    assert SseParser().feed(STREAM) == WANT


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cutting_gives_the_same(cuts: list[int]) -> None:
    parser, edges = SseParser(), [0, *sorted(cuts), len(STREAM)]
    found = [m for start, end in pairwise(edges) for m in parser.feed(STREAM[start:end])]
    assert found == WANT


def test_byte_by_byte() -> None:
    parser = SseParser()
    assert [m for i in range(len(STREAM)) for m in parser.feed(STREAM[i : i + 1])] == WANT


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_BUFFER", 1000)
    for end, fine in ((b"", 9), (b"\n", 11)):
        parser = SseParser()
        for _ in range(fine):
            parser.feed(b"data: " + b"x" * 100 + end)
        with pytest.raises(ValueError, match="without an end"):
            parser.feed(b"data: " + b"x" * 200 + end)
