from typing import Any

import pytest

from adapters.claude_code.blocks import Message, content_blocks


def test_blocks_are_claimed_in_their_order_and_once() -> None:
    message = Message("m")
    message.streamed(0, "text", "abc")
    message.streamed(2, "text", "de")
    assert message.rest_of("text", "abc") == ""
    assert message.rest_of("text", "def") == "f"
    assert message.rest_of("text", "a third") == "a third"


def test_a_block_of_another_kind_is_not_taken() -> None:
    message = Message("m")
    message.streamed(0, "thinking", "hm")
    assert message.rest_of("text", "hm") == "hm"
    assert message.rest_of("thinking", "hm") == ""


@pytest.mark.parametrize("value", [None, 7, {"type": "text"}, ["text"]])
def test_content_is_text_or_blocks(value: Any) -> None:
    assert content_blocks("hi") == [{"type": "text", "text": "hi"}]
    with pytest.raises(TypeError):
        content_blocks(value)
