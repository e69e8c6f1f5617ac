"""Readers of members: the value, or a TypeError."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.adapterkit.members import (
    as_number,
    as_object,
    as_text,
    count_or_none,
    is_number,
    number_or_none,
    text_or_none,
)


@pytest.mark.parametrize(("read", "good"), [(as_text, "x"), (as_object, {"a": 1}), (as_number, 3)])
def test_a_value_of_another_type_is_not_understood(read: Callable[[Any], Any], good: Any) -> None:
    assert read(good) == good
    bads: list[Any] = [None, True, [], 1 if read is as_text else "1"]
    for bad in bads:
        with pytest.raises(TypeError):
            read(bad)


def test_members_that_nothing_depends_on_are_none_instead() -> None:
    assert (text_or_none("x"), text_or_none(1)) == ("x", None)
    assert (number_or_none(1.5), number_or_none(True)) == (1.5, None)
    assert [count_or_none(value) for value in (2, -1, 1.0, True, None)] == [2, None, None, None, None]


def test_true_is_no_number() -> None:
    assert [is_number(value) for value in (1, 1.5, True, "1")] == [True, True, False, False]


def test_a_number_is_rounded() -> None:
    assert as_number(1.6) == 2
