"""The common rules of line parsers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.adapterkit.parsing import JsonLinesParser, decode
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, Status, Tokens


class Echo(JsonLinesParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        if obj.get("end"):
            done = Completed(final_text="", tokens=Tokens(input=0, output=0), duration_ms=0)
            return [done, MessageDelta(text="after", message_id="m")]
        return [MessageDelta(text=obj["text"], message_id="m")]

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        return [Error(reason="cli_failed", message=stderr_tail, details={"exit_code": exit_code})]


def test_lines_that_are_not_understood_become_events() -> None:
    parser = Echo()
    events = parser.feed(b'{"text":"a"}\nnot json\n[1]\n{"other":1}\n\n\xff\xfe\n' + b"z" * 5000 + b"\n")
    assert [e.kind for e in events] == ["message_delta", "status", "status", "status", "status", "status"]
    lines = [e.info["line"] for e in events if isinstance(e, Status)]
    assert lines == [2, 3, 4, 6, 7]
    assert isinstance(events[-1], Status)
    assert events[-1].info["raw"].endswith("[cut: 5000 characters]")


def test_a_script_of_the_image_reports_an_mcp_server_that_is_not_there() -> None:
    [found] = Echo().feed(b'{"type":"podmentor.mcp","server":"db","error":"no such command"}\n')
    assert found == Status(phase="mcp_unavailable", info={"server": "db", "reason": "no such command"})
    [unclear] = Echo().feed(b'{"type":"podmentor.mcp","server":7}\n')
    assert isinstance(unclear, Status)
    assert unclear.phase == "unparsed"


@pytest.mark.parametrize("line", [b'{"text":"a\0\0\0', b"\0\0\0", b'\0\0{"text":"b"}'])
def test_a_line_that_lost_bytes_keeps_a_run_from_being_completed(line: bytes) -> None:
    events = Echo().feed(b'{"text":"a"}\n' + line + b'\n{"end":1}\n')
    assert [event.kind for event in events] == ["message_delta", "status", "error"]
    last = events[-1]
    assert isinstance(last, Error)
    assert (last.reason, last.details["damaged_lines"]) == ("cli_failed", 1)


def test_noise_with_nul_bytes_says_nothing_about_the_answer() -> None:
    assert [event.kind for event in Echo().feed(b'binary \0 noise\n{"end":1}\n')] == ["status", "completed"]


def test_deeply_nested_json_does_not_crash() -> None:
    [event] = Echo().feed(b"[" * 200_000 + b"\n")
    assert isinstance(event, Status)


def test_nothing_follows_the_terminal_event() -> None:
    parser = Echo()
    assert [e.kind for e in parser.feed(b'{"end":1}\n{"text":"late"}\n')] == ["completed"]
    assert parser.feed(b'{"text":"later"}\n') == []
    assert parser.close(0, "") == []


def test_close_reads_the_last_line_and_ends_the_run() -> None:
    parser = Echo()
    assert parser.feed(b'{"text":"no newline"}') == []
    events = parser.close(1, "boom")
    assert [e.kind for e in events] == ["message_delta", "error"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a": "x\ud83dy"}', {"a": "x\ufffdy"}),
        (r'["\ude00", {"\uD83D": 1}]', ["\ufffd", {"\ufffd": 1}]),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud83d"', "\\ud83d"),
        ("[1, 1.5, -2e3, null, true]", [1, 1.5, -2000.0, None, True]),
    ],
)
def test_what_is_decoded_can_be_written_in_utf8(text: str, value: object) -> None:
    assert decode(text) == value
    json.dumps(decode(text), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": 1e999}', "[-1e999]", "{", "9" * 5000])
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|range|Expecting|digits"):
        decode(text)
