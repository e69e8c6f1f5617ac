"""The contracts that an adapter is held to with each of its recordings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    ToolResult,
    ToolUse,
)
from orchestrator.testing.kit import (
    Contracts,
    Subject,
    calls_before_results,
    final_text_was_said,
    in_tables,
    one_terminal,
)
from orchestrator.testing.recordings import Recording, play, to_dict

RECORDING_CONTRACTS: Contracts[[Subject, Recording]] = Contracts()


@RECORDING_CONTRACTS("C01", "exactly one terminal event, the last")
def _terminal(adapter: Subject, recording: Recording) -> None:
    one_terminal(play(adapter, recording), recording.name)


@RECORDING_CONTRACTS("C02", "the cutting of the bytes makes no difference")
def _cuttings(adapter: Subject, recording: Recording) -> None:
    whole = play(adapter, recording)
    data = recording.stdout
    single = (data[at : at + 1] for at in range(len(data)))
    assert play(adapter, recording, single) == whole, "byte by byte gives other events"
    assert play(adapter, recording, _random_cuts(data)) == whole, "random cuts give other events"


@RECORDING_CONTRACTS("C03", "the same bytes give the same events, whatever other parsers do meanwhile")
def _deterministic(adapter: Subject, recording: Recording) -> None:
    first, second = adapter.parser(), adapter.parser()
    seen: tuple[list[AgentEvent], list[AgentEvent]] = ([], [])
    for line in recording.lines:
        seen[0].extend(first.feed(line))
        seen[1].extend(second.feed(line))
    seen[0].extend(first.close(recording.exit_code, recording.stderr_tail))
    seen[1].extend(second.close(recording.exit_code, recording.stderr_tail))
    assert seen[0] == seen[1] == play(adapter, recording), "two parsers disagree"


@RECORDING_CONTRACTS("C04", "every tool result follows its call, and no call is told twice")
def _tools(adapter: Subject, recording: Recording) -> None:
    calls_before_results(play(adapter, recording))


@RECORDING_CONTRACTS("C05", "every event is in the tables and can be written as JSON")
def _tables(adapter: Subject, recording: Recording) -> None:
    in_tables(play(adapter, recording))


@RECORDING_CONTRACTS("C06", "an output that stops at any line still ends properly")
def _truncated(adapter: Subject, recording: Recording) -> None:
    whole = play(adapter, recording)
    lines = recording.lines
    for count in range(len(lines)):
        for code in (0, 137):
            short = Recording(name=recording.name, stdout=b"".join(lines[:count]), exit_code=code)
            events = play(adapter, short)
            one_terminal(events, f"{count} lines, exit code {code}")
            if adapter.supports_stream_json:  # else nothing is told before the end, and half a text is another text
                said = f"{count} lines give other events than the whole has first"
                assert events[:-1] == whole[: len(events) - 1], said


@RECORDING_CONTRACTS("C07", "invalid UTF-8 anywhere is survived")
def _invalid(adapter: Subject, recording: Recording) -> None:
    lines = recording.lines
    for at in range(len(lines)):
        middle = len(lines[at]) // 2
        torn = lines[at][:middle] + b"\xff\xc3" + lines[at][middle:]
        data = b"".join([*lines[:at], torn, *lines[at + 1 :]])
        events = play(adapter, Recording(name=recording.name, stdout=data, exit_code=recording.exit_code))
        one_terminal(events, f"line {at + 1} torn")
        in_tables(events)


@RECORDING_CONTRACTS("C08", "an unknown line among the others is shown and changes nothing else")
def _unknown_between(adapter: Subject, recording: Recording) -> None:
    if not adapter.supports_stream_json:
        return
    whole, lines = play(adapter, recording), recording.lines
    for at in range(len(lines)):
        data = b"".join([*lines[:at], b'{"type": "no.such.type.exists"}\n', *lines[at:]])
        short = Recording(
            name=recording.name, stdout=data, exit_code=recording.exit_code, stderr_tail=recording.stderr_tail
        )
        events = play(adapter, short)
        known = [event for event in events if not (isinstance(event, Status) and event.phase == "unparsed")]
        # Behind the terminal event nothing is read any more.
        assert len(events) - len(known) <= 1, "one unknown line is shown more than once"
        assert _without_line_ids(known) == _without_line_ids(whole), (
            f"an unknown line before line {at + 1} changes more"
        )


@RECORDING_CONTRACTS("C09", "a session begins once, before anything is said in it, and its id can be had")
def _session(adapter: Subject, recording: Recording) -> None:
    events = play(adapter, recording)
    started = [event for event in events if isinstance(event, SessionStarted)]
    assert len(started) <= 1, "the session begins more than once"
    for event in events:
        expected = event.session_id if isinstance(event, SessionStarted) else None
        assert adapter.extract_session_id(event) == expected, f"extract_session_id is wrong for {event.kind}"
    if started and adapter.supports_stream_json:
        speaks = (MessageDelta, ToolUse, ToolResult, Completed)
        first = next((at for at, event in enumerate(events) if isinstance(event, speaks)), len(events))
        assert events.index(started[0]) < first, "something is said before the session begins"


@RECORDING_CONTRACTS("C10", "the final text is what the last message said, or its end")
def _final_text(adapter: Subject, recording: Recording) -> None:
    final_text_was_said(play(adapter, recording))


@RECORDING_CONTRACTS("C11", "every line of a recording is understood")
def _understood(adapter: Subject, recording: Recording) -> None:
    unparsed = [event for event in play(adapter, recording) if isinstance(event, Status) and event.phase == "unparsed"]
    assert not unparsed, f"not understood: {unparsed[0].info}"


@RECORDING_CONTRACTS("C12", "the events are those that were reviewed")
def _golden(adapter: Subject, recording: Recording) -> None:
    assert recording.expected is not None, "there is no events.jsonl; see recordings.write_golden"
    found = [to_dict(event) for event in play(adapter, recording)]
    for number, (seen, expected) in enumerate(zip(found, recording.expected, strict=False), 1):
        assert seen == expected, f"event {number} is {seen}, expected {expected}"
    assert len(found) == len(recording.expected), f"{len(found)} events, expected {len(recording.expected)}"


@RECORDING_CONTRACTS("C13", "parse_oneshot agrees with the stream")
def _oneshot(adapter: Subject, recording: Recording) -> None:
    last = play(adapter, recording)[-1]
    text = recording.stdout.decode("utf-8", "replace")
    result = adapter.parse_oneshot(text, recording.stderr_tail, recording.exit_code or 0)
    if recording.exit_code is None:
        return
    assert result.is_error == isinstance(last, Error), "the two disagree about the outcome"
    if isinstance(last, Completed):
        assert result.final_text == last.final_text, "the two disagree about the final text"


def _without_line_ids(events: list[AgentEvent]) -> list[dict[str, Any]]:
    """A message without an id of its own is named by its line."""
    shown = [to_dict(event) for event in events]
    for event in shown:
        if str(event["data"].get("message_id", "")).startswith("line-"):
            event["data"]["message_id"] = "line"
    return shown


def _random_cuts(data: bytes) -> Iterator[bytes]:
    rng = random.Random(len(data))  # noqa: S311 - the same cuts each time
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 7, 64, 1000, 8192))
        yield data[at : at + size]
        at += size
