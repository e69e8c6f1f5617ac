import pytest

from orchestrator.relay.gateway.long_wait import RETRY_AFTER_MAX, reset_in, usage_limit_reached

NOW = 1_784_000_000.0  # Tue, 14 Jul 2026 03:33:20 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3600", 3600),
        (" 61 ", 61),
        ("60", None),
        ("1", None),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("\u0663\u0663\u0663", None),
        ("9" * 500, RETRY_AFTER_MAX),
        ("Tue, 14 Jul 2026 04:33:20 GMT", 3600),
        ("Tue, 14 Jul 2026 03:33:30 GMT", None),
        ("Tue, 14 Jul 2020 03:33:30 GMT", None),
    ],
)
def test_a_wait_is_long_when_it_is_over_the_routes_longest(value: str, expected: int | None) -> None:
    assert reset_in(429, {"Retry-After": value}, longest=60, now=NOW) == expected


def test_only_a_rate_limit_of_a_route_that_wants_it_counts() -> None:
    headers = {"Retry-After": "3600"}
    assert reset_in(503, headers, longest=60, now=NOW) is None
    assert reset_in(429, headers, longest=None, now=NOW) is None
    assert reset_in(429, {}, longest=60, now=NOW) is None


def test_the_answer_has_the_time_both_ways() -> None:
    error = usage_limit_reached(3600, now=NOW)["error"]
    assert (error["type"], error["resets_in_seconds"], error["resets_at"]) == ("usage_limit_reached", 3600, NOW + 3600)
