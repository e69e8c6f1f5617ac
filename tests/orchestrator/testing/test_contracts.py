"""The kit finds what it is there to find: each broken adapter fails the contract that it breaks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.adapter import BaseAdapter, GatewayRoute, StreamParser
from orchestrator.contract.types import Credentials
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Status
from orchestrator.testing.conformance import ADAPTER_CONTRACTS, RECORDING_CONTRACTS, Recording, play
from orchestrator.testing.recordings import to_dict
from tests.orchestrator.testing.broken import Good, GoodParser

RECORDING = Recording(name="r", stdout=b'{"say": "a"}\n{"call": "t"}\n{"back": "t"}\n{"say": "b"}\n')
RECORDING = replace(RECORDING, expected=[to_dict(event) for event in play(Good(), RECORDING)])


def broken_by(adapter: BaseAdapter, recording: Recording = RECORDING) -> set[str]:
    found = set()
    for contract in ADAPTER_CONTRACTS:
        try:
            contract(adapter)
        except AssertionError:
            found.add(contract.number)
    for rule in RECORDING_CONTRACTS:
        try:
            rule(adapter, recording)
        except AssertionError:
            found.add(rule.number)
    return found


def test_a_good_adapter_keeps_them_all() -> None:
    assert broken_by(Good()) == set()


def test_numbers_are_unique_and_titles_tell() -> None:
    shown = [str(contract) for contract in [*ADAPTER_CONTRACTS, *RECORDING_CONTRACTS]]
    assert len({title.split()[0] for title in shown}) == len(shown)
    assert shown[0] == "A01 the documented members are there"


class SecretInArgv(Good):
    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return [*super().build_argv(prompt=prompt, session_id=session_id, cwd=cwd), prompt]


class OptionAsSession(Good):
    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return ["good", session_id] if session_id else ["good"]


class KeyInUrl(Good):
    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return super().build_env(creds=creds, home=home) | {"URL": f"https://{creds.api_key}@example.org"}


class PlainUpstream(Good):
    gateway = GatewayRoute(upstream="http://api.example.org", key_headers=("x-api-key",), path_prefixes=("/v1",))


class UrlAsHost(Good):
    default_allowed_egress = ["https://example.org"]  # noqa: RUF012


class WithParser(Good):
    def __init__(self, parser: type[StreamParser]) -> None:
        self._parser = parser

    def parser(self) -> Any:
        return self._parser()


class Swallowing(GoodParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        return super().on_object(obj) if obj.keys() & {"say", "call", "back"} else ()

    def _unparsed(self, text: str) -> Status:
        return Status(phase="unparsed", info={"line": 0, "raw": ""})


class Endless(GoodParser):
    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        return []


class Twofold(GoodParser):
    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        return [*super().close(exit_code, stderr_tail), Error(reason="lost", message="again")]


class ByChunk(GoodParser):
    def feed(self, data: bytes) -> list[AgentEvent]:
        events = super().feed(data)
        return [*events, MessageDelta(text=f"{len(data)}", message_id="size")] if events else events


class Talkative(GoodParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        return [SessionStarted(session_id="s"), *super().on_object(obj)]


class OffTheTable(GoodParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        return [*super().on_object(obj), Status(phase="made_up")]


class OtherText(GoodParser):
    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        return [
            replace(e, final_text="other") if isinstance(e, Completed) else e
            for e in super().on_close(exit_code, stderr_tail)
        ]


SHARED: list[int] = []


class Sharing(GoodParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        SHARED.append(1)
        return [*super().on_object(obj), MessageDelta(text=f"{len(SHARED)}", message_id="m")]


@pytest.mark.parametrize(
    ("adapter", "number"),
    [
        (SecretInArgv(), "A02"),
        (OptionAsSession(), "A03"),
        (KeyInUrl(), "A04"),
        (PlainUpstream(), "A05"),
        (UrlAsHost(), "A06"),
        (WithParser(Endless), "A07"),
        (WithParser(Swallowing), "A09"),
        (WithParser(Endless), "C01"),
        (WithParser(Twofold), "C01"),
        (WithParser(ByChunk), "C02"),
        (WithParser(Sharing), "C03"),
        (WithParser(OffTheTable), "C05"),
        (WithParser(Twofold), "C06"),
        (WithParser(Talkative), "C09"),
        (WithParser(OtherText), "C10"),
        (WithParser(OtherText), "C12"),
    ],
)
def test_a_broken_adapter_is_found(adapter: BaseAdapter, number: str) -> None:
    assert number in broken_by(adapter)


@pytest.mark.parametrize(
    ("stdout", "number"),
    [
        (b'{"back": "t"}\n{"say": "x"}\n', "C04"),
        (b'{"call": "t"}\n{"call": "t"}\n{"say": "x"}\n', "C04"),
        (b'{"what": 1}\n{"say": "x"}\n', "C11"),
        (b'{"say": "x"}\n', "C12"),
    ],
)
def test_a_recording_that_is_not_kept_is_found(stdout: bytes, number: str) -> None:
    assert number in broken_by(Good(), replace(RECORDING, stdout=stdout))


def test_a_recording_without_its_events_is_found() -> None:
    assert broken_by(Good(), replace(RECORDING, expected=None)) == {"C12"}
