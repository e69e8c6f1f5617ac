"""W3C trace context."""

from __future__ import annotations

import pytest

from orchestrator.contract.traces import Parent, parse_traceparent

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_a_caller_sends() -> None:
    parent = Parent(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled=True)
    assert parse_traceparent(GOOD) == parent
    assert parse_traceparent(GOOD[:-2] + "00") == parent._replace(sampled=False)
    assert parse_traceparent("cc" + GOOD[2:] + "-what-comes-later") == parent


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        GOOD.upper(),
        "ff" + GOOD[2:],
        GOOD + "-more",
        GOOD + "\n",
        f" {GOOD}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        GOOD[:-1] + "g",
        "cc" + GOOD[2:] + "-" + "x" * 300,
    ],
)
def test_what_is_none(text: str | None) -> None:
    assert parse_traceparent(text) is None
