from collections.abc import Mapping

import pytest

from orchestrator.scripted.wire import KeyPlace, find_key

ALL: tuple[KeyPlace, ...] = ("x-api-key", "bearer", "x-goog-api-key", "?key")


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"x-api-key": "a"}, {}, "a"),
        ({"authorization": "Bearer b"}, {}, "b"),
        ({"authorization": "Basic b"}, {}, None),
        ({"authorization": "bearer "}, {}, None),
        ({"x-goog-api-key": "c"}, {}, "c"),
        ({}, {"key": "d"}, "d"),
        ({"x-api-key": "a", "authorization": "Bearer b"}, {"key": "d"}, "a"),
        ({}, {}, None),
    ],
)
def test_a_key_is_found_in_its_places(headers: Mapping[str, str], query: Mapping[str, str], key: str | None) -> None:
    assert find_key(headers, query, ALL) == key


def test_a_key_in_another_place_is_none() -> None:
    assert find_key({"x-api-key": "a"}, {"key": "d"}, ("bearer",)) is None
