"""From conmon's log to stamped events."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from orchestrator.events import Completed, Error, Status
from orchestrator.runs.stream.decoder import DIAGNOSTICS_MAX, GAPS_MAX, LogDecoder, Stamped, utc
from tests.fakes.adapter import EchoParser


def log_line(data: bytes, *, stream: str = "stdout", mark: str = "F", second: int = 0) -> bytes:
    return f"2026-01-02T03:04:{second:02d}.123456789+02:00 {stream} {mark} ".encode() + data + b"\n"


def say(second: int = 0, **line: Any) -> bytes:
    return log_line(json.dumps(line).encode(), second=second)


def decode(log: bytes, size: int, exit_code: int | None = 0) -> list[Stamped]:
    decoder = LogDecoder(EchoParser())
    out = [event for i in range(0, len(log), size) for event in decoder.feed(log[i : i + size])]
    return out + decoder.close(exit_code)


SAMPLE = b"".join(
    [
        say(1, session="s1"),
        log_line(b"warning: one", stream="stderr", second=2),
        log_line(b'{"text":"hel', mark="P", second=3),
        log_line(b"noise between the pieces", stream="stderr", second=3),
        log_line(b'lo"}', second=4),
        log_line(b"\xff\xfe not json", second=5),
        say(6, done="hello"),
        log_line(b"bye", stream="stderr", second=7),
        log_line(b"tail without newline", stream="stderr", mark="P", second=8),
    ]
)


def test_order_stamps_and_the_terminal_event_last() -> None:
    events = decode(SAMPLE, len(SAMPLE))
    assert [(e.ts[17:19], e.event.kind) for e in events] == [
        ("01", "session_started"),
        ("02", "status"),
        ("03", "status"),
        ("04", "message_delta"),
        ("05", "status"),
        ("07", "status"),
        ("08", "status"),
        ("08", "completed"),
    ]
    assert events[0].ts == "2026-01-02T01:04:01.123456Z"


def test_a_re_read_log_gives_the_same_events_however_it_is_cut() -> None:
    whole = decode(SAMPLE, len(SAMPLE))
    rng = random.Random(3)
    for size in (1, 2, 7, *(rng.randrange(1, len(SAMPLE)) for _ in range(20))):
        assert decode(SAMPLE, size) == whole


def test_every_prefix_of_a_log_ends_with_exactly_one_terminal_event() -> None:
    for length in range(0, len(SAMPLE), 5):
        events = decode(SAMPLE[:length], 64, exit_code=137)
        terminal = [e for e in events if isinstance(e.event, Completed | Error)]
        assert terminal == [events[-1]]


def test_a_flood_of_stderr_becomes_a_bounded_number_of_events() -> None:
    log = b"".join(log_line(b"line %d" % i, stream="stderr") for i in range(5000))
    events = [e.event for e in decode(log, 4096)]
    diagnostics = [e for e in events if isinstance(e, Status) and e.phase == "diagnostic"]
    assert len(diagnostics) == DIAGNOSTICS_MAX + 1
    assert "log only" in diagnostics[-1].info["stderr"]


def test_the_parser_sees_the_end_of_stderr() -> None:
    log = log_line(b"x" * 9000, stream="stderr") + log_line(b"the cause", stream="stderr")
    last = decode(log, len(log), exit_code=3)[-1].event
    assert isinstance(last, Error)
    assert last.details["stderr"].endswith("the cause\n")
    assert len(last.details["stderr"]) <= 8192


def test_a_foreign_time_stamp_is_kept_as_it_is() -> None:
    assert utc("garbage") == "garbage"
    assert utc("2026-07-01T12:00:61.000000001Z") == "2026-07-01T12:00:61.000000001Z"


@pytest.mark.parametrize("ts", ["0001-01-01T00:00:00.000000001+02:00", "0001-01-01T00:00:00+02:00"])
def test_a_time_before_the_first_year_is_kept_as_it_is(ts: str) -> None:
    assert utc(ts) == ts


def test_missing_output_is_told_where_it_is_missing() -> None:
    torn = say(2, text="this line was not written to its end")
    log = say(1, session="s1") + torn[:-20] + say(9, text="later") + say(10, done="later")
    events = decode(log, len(log))
    kinds = [(e.event.kind, getattr(e.event, "phase", None)) for e in events]
    assert kinds == [
        ("session_started", None),
        ("status", "unparsed"),
        ("status", "output_lost"),
        ("message_delta", None),
        ("completed", None),
    ]
    assert [decode(log, size) for size in (1, 3, 50)] == [events] * 3


def test_a_log_that_ends_in_half_a_line_shows_it() -> None:
    for length in range(1, len(say(2, text="x"))):
        log = say(1, session="s1") + say(2, text="x")[:length]
        phases = [e.event.phase for e in decode(log, len(log), None) if isinstance(e.event, Status)]
        assert phases.count("output_lost") == 1, length
        assert phases[-1] == "output_lost"


def test_gaps_are_told_a_bounded_number_of_times() -> None:
    log = b"".join(say(i % 60, text="x")[:-5] for i in range(60)) + b"\n"
    phases = [e.event.phase for e in decode(log, 1000) if isinstance(e.event, Status)]
    assert phases.count("output_lost") == GAPS_MAX
