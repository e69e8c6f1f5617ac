"""The conformance kit: what every adapter is held to, as numbered contracts.

``ADAPTER_CONTRACTS`` need the adapter alone, ``RECORDING_CONTRACTS`` one of its recordings too; each raises
AssertionError, with the reason, when it is broken.  With pytest::

    @pytest.mark.parametrize("contract", ADAPTER_CONTRACTS, ids=str)
    def test_adapter(contract): contract(MyAdapter())

    @pytest.mark.parametrize("recording", load_all(Path("recordings/mine")), ids=lambda r: r.name)
    @pytest.mark.parametrize("contract", RECORDING_CONTRACTS, ids=str)
    def test_recording(contract, recording): contract(MyAdapter(), recording)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from orchestrator.contract.adapter import AgentAdapter, BaseAdapter
from orchestrator.contract.types import Credentials
from orchestrator.errors import PodmentorError
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
    Contract,
    Contracts,
    Subject,
    calls_before_results,
    final_text_was_said,
    in_tables,
    one_terminal,
)
from orchestrator.testing.recordings import Recording, load, load_all, play, to_dict, write_golden

__all__ = [
    "ADAPTER_CONTRACTS",
    "RECORDING_CONTRACTS",
    "Contract",
    "Recording",
    "Subject",
    "installed_adapters",
    "load",
    "load_all",
    "play",
    "write_golden",
]
KEY: Final = "the-run-token-of-the-conformance-kit"
PROMPT: Final = "the prompt of the conformance kit"
SESSION: Final = "7b0cf0f5-6c6c-4d55-9f0e-0e9d6a3b8f11"
EXIT_CODES: Final = (0, 1, 126, 127, 137, 143, None)
ADAPTER_CONTRACTS: Contracts[[Subject]] = Contracts()
RECORDING_CONTRACTS: Contracts[[Subject, Recording]] = Contracts()


def installed_adapters() -> dict[str, type[BaseAdapter]]:
    """Every adapter of every installed distribution, by name."""
    return {point.name: point.load() for point in entry_points(group="podmentor.adapters")}


@ADAPTER_CONTRACTS("A01", "the documented members are there")
def _members(adapter: Subject) -> None:
    assert isinstance(adapter, AgentAdapter), "a documented member is missing"
    assert adapter.name, "name is empty"
    assert adapter.binary, "binary is empty"


@ADAPTER_CONTRACTS("A02", "the command line holds neither secret nor prompt")
def _argv(adapter: Subject) -> None:
    argv = adapter.build_argv(prompt=PROMPT, session_id=None, cwd=Path("/workspace"))
    assert argv, "argv is empty"
    assert argv[0] == adapter.binary, f"argv begins with {argv[0]!r}, not with {adapter.binary!r}"
    assert all(argv), "argv holds an empty word"
    assert KEY not in " ".join(argv), "argv holds the key"
    if not getattr(adapter, "prompt_in_argv", False):
        assert PROMPT not in " ".join(argv), "argv holds the prompt (set prompt_in_argv where the CLI wants it so)"


@ADAPTER_CONTRACTS("A03", "a session is resumed by its id, and an id that reads as an option is not passed on")
def _resume(adapter: Subject) -> None:
    if not adapter.supports_resume:
        return
    session = getattr(adapter, "session_example", SESSION)  # an adapter may take only ids of its CLI's own form
    argv = adapter.build_argv(prompt=PROMPT, session_id=session, cwd=Path("/workspace"))
    assert any(session in word for word in argv), "the session id is not on the command line"
    try:
        argv = adapter.build_argv(prompt=PROMPT, session_id="--version", cwd=Path("/workspace"))
    except PodmentorError:
        return
    assert "--version" not in argv, "a session id can be an option"


@ADAPTER_CONTRACTS(
    "A04", "the environment holds PATH, HOME, LANG, what the operator adds, and the key in whole values only"
)
def _env(adapter: Subject) -> None:
    without = adapter.build_env(creds=Credentials(), home=Path("/home/someone"))
    extra = {"EXTRA_OF_THE_OPERATOR": "x"}
    full = adapter.build_env(creds=Credentials(api_key=KEY, extra_env=extra), home=Path("/home/someone"))
    assert without.get("HOME") == "/home/someone", "HOME is not the directory that was given"
    assert {"PATH", "LANG"} <= without.keys(), "PATH or LANG is missing"
    assert all(isinstance(value, str) for value in [*full, *full.values()]), "a variable is no text"
    assert full.get("EXTRA_OF_THE_OPERATOR") == "x", "the operator's extra_env is missing"
    added = {name: value for name, value in full.items() if without.get(name) != value and name not in extra}
    assert all(KEY not in value or value == KEY for value in full.values()), "the key is part of a value"
    assert all(value == KEY for value in added.values()), f"a key changes {sorted(added)}, which are not the key"


@ADAPTER_CONTRACTS("A05", "the gateway is reached by its base URL, and leads to https only")
def _gateway(adapter: Subject) -> None:
    if adapter.gateway is None:
        return
    url = "http://127.0.0.1:18080"
    named = [*adapter.gateway_env(url).values(), *adapter.gateway_argv(url)]
    assert any(url in value for value in named), "neither gateway_env nor gateway_argv names the gateway"
    assert adapter.gateway.upstream.startswith("https://"), "the provider is not reached by https"
    assert not adapter.gateway.upstream.endswith("/"), "upstream ends with a slash"
    assert adapter.gateway.key_headers, "no header holds the key"
    assert adapter.gateway.path_prefixes, "no path is let through"
    assert all(prefix.startswith("/") and prefix != "/" for prefix in adapter.gateway.path_prefixes), "a bad prefix"


@ADAPTER_CONTRACTS("A06", "egress hosts are plain names, each once")
def _egress(adapter: Subject) -> None:
    hosts = adapter.default_allowed_egress
    assert len(set(hosts)) == len(hosts), "a host is listed twice"
    for host in hosts:
        plain = "." in host and not set(host) & set("/:* ") and host == host.lower()
        assert plain, f"{host!r} is no host name"


@ADAPTER_CONTRACTS("A07", "a CLI that prints nothing ends in exactly one terminal event, whatever its exit code")
def _silent(adapter: Subject) -> None:
    for code in EXIT_CODES:
        one_terminal(play(adapter, Recording(name="silent", stdout=b"", exit_code=code)), f"exit code {code}")


@ADAPTER_CONTRACTS("A08", "a CLI that is not there is reported as such")
def _not_there(adapter: Subject) -> None:
    stderr = f"exec {adapter.binary}: no such file or directory"
    last = play(adapter, Recording(name="127", stdout=b"", exit_code=127, stderr_tail=stderr))[-1]
    reason = last.reason if isinstance(last, Error) else None
    assert reason == "cli_not_installed", f"exit code 127 gave {to_dict(last)}"


@ADAPTER_CONTRACTS("A09", "a line that is not understood is shown as unparsed")
def _unknown(adapter: Subject) -> None:
    if not adapter.supports_stream_json:
        return
    for line in (b'{"type": "no.such.type.exists"}\n', b"no JSON at all\n", b"[1, 2]\n", b'{"type": ["a list"]}\n'):
        events = play(adapter, Recording(name="unknown", stdout=line, exit_code=1))
        phases = [event.phase for event in events if isinstance(event, Status)]
        assert phases == ["unparsed"], f"{line!r} was not shown as unparsed"


@ADAPTER_CONTRACTS("A10", "bytes that are no text do no harm")
def _noise(adapter: Subject) -> None:
    noise = random.Random(1).randbytes(4096)  # noqa: S311 - the same noise each time
    for code in EXIT_CODES:
        events = play(adapter, Recording(name="noise", stdout=noise, exit_code=code, stderr_tail="\ufffd\x00"))
        one_terminal(events, f"exit code {code}")
        in_tables(events)


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


@RECORDING_CONTRACTS("C04", "every tool result follows its call, and no call is reported twice")
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
            if adapter.supports_stream_json:  # else nothing is reported before the end, and half a text is another text
                message = f"{count} lines give other events than the whole has first"
                assert events[:-1] == whole[: len(events) - 1], message


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
