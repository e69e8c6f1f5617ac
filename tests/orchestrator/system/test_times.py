from datetime import UTC, datetime, timedelta, timezone

import pytest

from orchestrator.system import times
from orchestrator.system.times import Precision

MOMENT = datetime(2026, 1, 31, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("seconds", "2026-01-31T12:00:00Z"),
        ("milliseconds", "2026-01-31T12:00:00.999Z"),
        ("microseconds", "2026-01-31T12:00:00.999999Z"),
    ],
)
def test_a_time_is_written_in_utc_and_never_rounded_up(precision: Precision, text: str) -> None:
    assert times.rfc3339(MOMENT, precision) == text


def test_what_was_written_is_read_again() -> None:
    assert times.parse(times.rfc3339(MOMENT)) == MOMENT


def test_a_time_without_a_zone_is_utc() -> None:
    assert times.parse("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        times.parse("yesterday")


def test_seconds_since_are_never_negative() -> None:
    assert times.seconds_since(times.rfc3339(times.utc_now() + timedelta(hours=1))) == 0.0
    assert 59 < times.seconds_since(times.rfc3339(times.utc_now() - timedelta(minutes=1))) < 120
