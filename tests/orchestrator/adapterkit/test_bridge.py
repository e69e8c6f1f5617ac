"""Parsers made from the documented members alone (C1)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from orchestrator.adapterkit.bridge import ONESHOT_MAX_BYTES, OneshotBridge, StreamBridge
from orchestrator.contract.adapter import StreamParser
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted
from tests.fakes.adapters import DocumentedAdapter, LateAdapter, OneshotAdapter

OUTPUT = b"hello\nwor\xc3\xa9ld\ndone\nafter the end\n"


def run(parser: StreamParser, chunks: list[bytes], exit_code: int | None = 0, stderr: str = "") -> list[AgentEvent]:
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close(exit_code, stderr)


def cuts(data: bytes, seed: int) -> list[bytes]:
    at = sorted(random.Random(seed).sample(range(len(data)), 5))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@pytest.mark.parametrize("adapter", [DocumentedAdapter(), LateAdapter()])
@pytest.mark.parametrize("chunks", [[OUTPUT], [bytes([b]) for b in OUTPUT], cuts(OUTPUT, 1), [b"", OUTPUT, b""]])
def test_c1_parse_stream_becomes_a_parser(adapter: DocumentedAdapter, chunks: list[bytes]) -> None:
    events = run(StreamBridge(adapter), chunks)
    assert [type(e) for e in events] == [SessionStarted, MessageDelta, MessageDelta, Completed]
    assert isinstance(events[2], MessageDelta)
    assert events[2].text == "woréld"


def test_events_come_as_soon_as_their_bytes_are_there() -> None:
    parser = StreamBridge(DocumentedAdapter())
    assert [type(e) for e in parser.feed(b"hel")] == [SessionStarted]
    assert parser.feed(b"lo") == []
    assert parser.feed(b"\n") == [MessageDelta(text="hello", message_id="m")]


def test_an_output_without_a_result_ends_in_an_error() -> None:
    events = run(StreamBridge(DocumentedAdapter()), [b"hello\n"], exit_code=3, stderr="boom")
    assert isinstance(events[-1], Error)
    assert events[-1].reason == "cli_failed"
    assert events[-1].details == {"exit_code": 3, "stderr": "boom"}
    nothing = run(StreamBridge(DocumentedAdapter()), [], exit_code=0)
    assert isinstance(nothing[-1], Error)


def test_text_without_a_result_and_a_good_exit_is_the_answer() -> None:
    events = run(StreamBridge(DocumentedAdapter()), [b"hello\n"], exit_code=0)
    assert isinstance(events[-1], Completed)
    assert events[-1].final_text == "hello"


def test_a_parse_stream_that_waits_for_something_else_is_told() -> None:
    class Sleeper(DocumentedAdapter):
        async def parse_stream(self, stdout: AsyncIterator[bytes]) -> AsyncIterator[AgentEvent]:
            await asyncio.sleep(0)
            yield SessionStarted(session_id="never")

    parser = StreamBridge(Sleeper())
    with pytest.raises(RuntimeError, match="awaits something other"):
        parser.feed(b"x")


def test_oneshot_output_is_read_at_the_end() -> None:
    parser = OneshotBridge(OneshotAdapter())
    assert parser.feed(b"the ans") == []
    assert parser.feed(b"wer") == []
    events = parser.close(0, "")
    assert [type(e) for e in events] == [SessionStarted, MessageDelta, Completed]
    assert isinstance(events[-1], Completed)
    assert events[-1].final_text == "the answer"
    assert (events[-1].tokens.input, events[-1].tokens.output) == (4, 5)


def test_a_failed_oneshot_ends_in_an_error() -> None:
    events = run(OneshotBridge(OneshotAdapter()), [b"x"], exit_code=1, stderr="bad flag")
    assert events == [Error(reason="cli_failed", message="bad flag")]


def test_a_huge_oneshot_output_is_bounded() -> None:
    parser = OneshotBridge(OneshotAdapter())
    for _ in range(3):
        parser.feed(b"x" * (ONESHOT_MAX_BYTES // 2))
    completed = parser.close(0, "")[-1]
    assert isinstance(completed, Completed)
    assert len(completed.final_text) == ONESHOT_MAX_BYTES
