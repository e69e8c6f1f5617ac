from typing import Any

import pytest

from adapters.claude_code.blocks import (
    TEXT_KEEP,
    KeptText,
    Message,
    content_blocks,
    number,
    text_or_none,
    whole,
)


def test_blocks_are_claimed_in_their_order_and_once() -> None:
    message = Message("m")
    message.streamed(0, "text", "abc")
    message.streamed(2, "text", "de")
    assert message.untold("text", "abc") == ""
    assert message.untold("text", "def") == "f"
    assert message.untold("text", "a third") == "a third"


def test_a_block_of_another_kind_is_not_taken() -> None:
    message = Message("m")
    message.streamed(0, "thinking", "hm")
    assert message.untold("text", "hm") == "hm"
    assert message.untold("thinking", "hm") == ""


def test_kept_text_is_the_newest_messages() -> None:
    kept = KeptText()
    kept.add("a", "old")
    kept.add("b", "new ")
    kept.add("b", "text")
    assert kept.join() == "new text"


def test_kept_text_is_bounded_and_says_so() -> None:
    kept = KeptText()
    kept.add("a", "x" * (TEXT_KEEP - 1))
    kept.add("a", "yz")
    kept.add("a", "w")
    assert kept.join().endswith("xy …[cut: 2 characters, the whole is in the run's log]")


@pytest.mark.parametrize("value", [None, 1, ["x"], True])
def test_text_is_text(value: Any) -> None:
    assert text_or_none(value) is None
    with pytest.raises(TypeError):
        whole(value)


@pytest.mark.parametrize("value", [None, "1", True])
def test_numbers_are_numbers(value: Any) -> None:
    assert number(1.6) == 2
    with pytest.raises(TypeError):
        number(value)


@pytest.mark.parametrize("value", [None, 7, {"type": "text"}, ["text"]])
def test_content_is_text_or_blocks(value: Any) -> None:
    assert content_blocks("hi") == [{"type": "text", "text": "hi"}]
    with pytest.raises(TypeError):
        content_blocks(value)
