from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from orchestrator.relay.gateway.answers import (
    RETRY_AFTER_MAX,
    Scrubber,
    clean_response_headers,
    reset_in,
    usage_limit_reached,
)

secrets_of_few_letters = st.binary(min_size=1, max_size=6).map(lambda data: bytes(97 + byte % 3 for byte in data))
texts = st.lists(st.integers(97, 99), max_size=60).map(bytes)


@settings(database=None)  # the checkout may not be writable
@example(secret=b"aab", text=b"aaaab", cuts=[1, 2, 3, 4])
@given(secret=secrets_of_few_letters, text=texts, cuts=st.lists(st.integers(0, 60), max_size=12))
def test_any_cutting_gives_the_same_without_the_secret_and_holds_back_only_its_beginning(
    secret: bytes, text: bytes, cuts: list[int]
) -> None:
    scrubber = Scrubber(secret)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    out, taken = b"", 0
    for start, end in pairwise(edges):
        out += scrubber.feed(text[start:end])
        taken = end
        held = taken - len(out)
        assert 0 <= held < len(secret)
        assert secret.startswith(text[taken - held : taken])
    out += scrubber.close()
    assert out == text.replace(secret, b"*" * len(secret))
    assert secret not in out
    assert len(out) == len(text)


def test_what_cannot_be_the_secret_is_passed_on_at_once() -> None:
    scrubber = Scrubber(b"sk-secret")
    assert scrubber.feed(b"data: sk-\n\n") == b"data: sk-\n\n"
    assert scrubber.feed(b"data: sk-se") == b"data: "
    assert scrubber.feed(b"cret!") == b"*********!"
    assert scrubber.close() == b""


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Scrubber(b"")


def test_response_headers_lose_the_secret_and_what_belongs_to_the_connection() -> None:
    headers = CIMultiDict(
        [
            ("Content-Type", "text/event-stream"),
            ("X-Echo", "Bearer sk-secret"),
            ("sk-Secret", "1"),
            ("Connection", "x-hop"),
            ("X-Hop", "1"),
            ("Set-Cookie", "a=1"),
            ("Request-Id", "r1"),
            ("Request-Id", "r2"),
            ("X-Bad", "\udcff"),
        ]
    )
    kept = clean_response_headers(headers, frozenset({"connection", "set-cookie"}), "sk-secret")
    assert kept == [("Content-Type", "text/event-stream"), ("Request-Id", "r1"), ("Request-Id", "r2")]


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
