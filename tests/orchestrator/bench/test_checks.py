"""Each check holds for a good backend, and fails (or says: not supported) for what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.bench import check as checking
from orchestrator.bench import scenes
from orchestrator.bench.checks import CHECKS
from orchestrator.bench.fixture import Stage
from orchestrator.bench.results import BackendReport
from orchestrator.bench.runner import bench
from orchestrator.contract.adapter import Capabilities
from orchestrator.contract.runs import RunRecord
from orchestrator.errors import StorageError
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    Tokens,
    ToolResult,
)
from tests.orchestrator.bench.actor import KEY, RETRYING, Actors, BenchAdapter, Key, Provider, end, fails, say, tool

S = SessionStarted(session_id="s")


async def tried(stage: Stage) -> BackendReport:
    return await bench(stage, jobs=4, progress=lambda text: None)


async def outcomes(stage: Stage) -> dict[str, str]:
    return {result.number: result.outcome for result in (await tried(stage)).results}


async def test_a_backend_that_does_everything_right_is_green(good: Stage) -> None:
    report = await tried(good)
    assert [(r.number, r.outcome, r.detail) for r in report.results if r.outcome != "pass"] == []
    assert [r.number for r in report.results] == [f"B{n:02d}" for n in range(1, len(CHECKS) + 2)]
    assert report.ok
    assert set(report.capabilities.values()) == {True}
    assert (report.backend, report.cli_version, report.image_tag) == (
        "claude-code",
        "2.1.197",
        "podmentor/claude-code:1",
    )


Change = Callable[[Stage, Actors], None]


def says(scene: str, *events: Any) -> Change:
    def change(_: Stage, actors: Actors) -> None:
        actors.script[scene] = list(events)

    return change


def survivors(_: Stage, actors: Actors) -> None:
    actors.survivors = 1


def leak_in_event(_: Stage, actors: Actors) -> None:
    actors.script["secrets"].insert(1, Thinking(text=f"KEY={KEY}"))


def leak_in_file(stage: Stage, _: Actors) -> None:
    (stage.paths.state_dir / "relay.log").write_text(f"sent {KEY} upstream")


def other_key(stage: Stage, _: Actors) -> None:
    cast("Provider", stage.provider).requests.append(Key(None))


def never_asked(stage: Stage, actors: Actors) -> None:
    actors.asked = lambda: cast("Provider", stage.provider).requests.append(Key("other"))


def asked_twice(stage: Stage, actors: Actors) -> None:
    def ask() -> None:
        cast("Provider", stage.provider).requests += [Key(KEY), Key(KEY)]

    actors.asked = ask


def repo_touched(stage: Stage, actors: Actors) -> None:
    play = actors.on_submit

    def touch(record: RunRecord) -> None:
        if "scenario: edit" in record.query:
            (stage.repo / "a.txt").write_text("changed")
        play(record)

    actors.on_submit = touch


def command_taken(_: Stage, actors: Actors) -> None:
    actors.read_as = lambda prompt: "This is the repo's own text." if prompt.startswith("/") else prompt


OUTSIDE = Status(phase="egress_denied", info={"host": "telemetry.example", "port": 443, "reason": "no", "count": 1})


def unparsed(_: Stage, actors: Actors) -> None:
    actors.script["thinking"].insert(1, Status(phase="unparsed", info={"line": 1, "raw": "{"}))


WRONG: list[tuple[str, Change]] = [
    ("B05", says("shell", S, *tool("Bash", "nothing"), end("nothing"))),
    ("B05", says("shell", S, end("podmentor-bench"))),
    ("B06", repo_touched),
    ("B08", says("follow", S, end("The first was: What was it?"))),
    ("B09", says("lost", S, end("a new session"))),
    ("B10", says("401", *fails("cli_failed"))),
    ("B11", says("busy", *fails("timeout", RETRYING))),
    ("B12", says("500", *fails("rate_limited", RETRYING))),
    ("B14", says("cut", S, end("half an answer"))),
    ("B16 B29", says("huge", S, *say("x" * 999), end("x" * 1000))),
    ("B16", says("huge", S, *say("x" * 1000), end("x" * 999))),
    ("B17", says("utf8", S, *say("Gr\ufffde red"), end("Gr\ufffde red"))),
    ("B17", says("utf8", S, *say("Gr\u00fc\u00dfe \x1b[31mred"), end("Gr\u00fc\u00dfe \x1b[31mred"))),
    ("B17", says("utf8", S, *say("Gr\u00fc\u00dfe 1mred"), end("Gr\u00fc\u00dfe 1mred"))),
    ("B18", survivors),
    ("B19", says("hang", S, end("Awake."))),
    ("B20", leak_in_event),
    ("B20", leak_in_file),
    ("B20", other_key),
    ("B20", never_asked),
    ("B21", unparsed),
    ("B26", command_taken),
    ("B27", asked_twice),
    ("B28", says("delegate", S, *tool("Task", "done"), *tool("Bash", "from the helper"), end())),
    ("B29", says("fail", S, *reversed(tool("Bash", "no", is_error=True)), end())),
    ("B25", says("thinking", S, OUTSIDE, Thinking(text="hm"), end())),
]


@pytest.mark.parametrize(("number", "change"), WRONG, ids=[f"{number}-{n}" for n, (number, _) in enumerate(WRONG)])
async def test_what_is_wrong_is_found(good: Stage, actors: Actors, number: str, change: Change) -> None:
    change(good, actors)
    found = await outcomes(good)
    failed = [name for name, outcome in found.items() if outcome == "fail"]
    assert failed == ([number, "B30"] if number == "B08" else number.split()), (
        "resume is declared, so B27 fails with B08"
    )


MISSING: list[tuple[str, str, Change]] = [
    ("B07", "tool_errors", says("fail", S, *tool("Bash", "exit 3"), end())),
    (
        "B13",
        "retry_notices",
        lambda _, a: a.script.update(busy=fails("rate_limited"), **{"500": fails("provider_unavailable")}),
    ),
    ("B15", "length_limit", says("maxtok", S, end("An answer without an e", stop_reason="end_turn"))),
]


@pytest.mark.parametrize(("number", "capability", "change"), MISSING)
async def test_what_the_cli_cannot_do_is_said_and_is_no_failure(
    good: Stage, actors: Actors, number: str, capability: str, change: Change
) -> None:
    change(good, actors)
    report = await tried(good)
    assert [r.number for r in report.results if r.outcome == "unsupported"] == [number]
    assert report.ok
    assert report.capabilities[capability] is False


UNDECLARED = [
    ("B03", "deltas", "text", [S, MessageDelta(text="Hello there.", message_id="m"), end("Hello there.")]),
    ("B04", "thinking", "thinking", [S, end()]),
    ("B23", "cost", "text", [S, *say("Hello there."), end("Hello there.", cost_usd=None)]),
]


@pytest.mark.parametrize(("number", "name", "scene", "events"), UNDECLARED)
async def test_what_is_declared_must_be_seen(
    good: Stage, actors: Actors, number: str, name: str, scene: str, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    actors.script[scene] = events
    found = await outcomes(good)
    assert (found[number], found["B30"]) == ("fail", "fail")
    declared = {"streaming": True, "deltas": True, "thinking": True, "resume": True, "cost": True, name: False}
    monkeypatch.setattr(BenchAdapter, "capabilities", Capabilities(**declared))
    found = await outcomes(good)
    assert (found[number], found["B30"]) == ("unsupported", "pass")


async def test_what_is_seen_must_be_declared(good: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BenchAdapter, "capabilities", Capabilities(streaming=True, resume=True, cost=True, thinking=True)
    )
    report = await tried(good)
    assert [(r.number, r.detail) for r in report.results if r.outcome == "fail"] == [
        ("B30", "deltas: it can, and the adapter says otherwise")
    ]


async def test_without_a_plain_answer_nothing_else_is_tried(good: Stage, actors: Actors) -> None:
    actors.script["text"] = [Error(reason="image_missing", message="run `podmentor images build x`")]
    report = await tried(good)
    assert report.results[0].outcome == "fail"
    assert "podmentor images build x" in report.results[0].detail
    assert {result.outcome for result in report.results[1:]} == {"skipped"}
    assert len(actors.requests) == 1
    assert not report.ok
    assert report.capabilities == {}


async def test_events_that_come_only_at_the_end_are_no_streaming(
    good: Stage, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "HELD_SECONDS", 0.05)
    emit = actors.emit
    monkeypatch.setattr(
        actors,
        "emit",
        lambda run_id, *events, **more: emit(run_id, *events, **more) if "text='Before. '" not in str(events) else None,
    )
    found = await outcomes(good)
    assert found["B02"] == "fail", "it is declared"


async def test_an_answer_that_takes_for_ever_to_fail_is_found(good: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "BOUND_SECONDS", 0.0)
    found = await outcomes(good)
    assert {name for name, outcome in found.items() if outcome == "fail"} == {"B09", "B10", "B11", "B12", "B14"}


async def test_what_runs_leave_behind_is_found(good: Stage) -> None:
    async def left() -> list[str]:
        return ["container of 1"]

    dirty = replace(good, leftovers=left)
    assert (await outcomes(dirty))["B24"] == "fail"


async def test_escape_sequences_may_be_taken_out(good: Stage, actors: Actors) -> None:
    actors.script["utf8"] = [S, *say("Gr\u00fc\u00dfe red"), end("Gr\u00fc\u00dfe red")]
    results = {result.number: result for result in (await tried(good)).results}
    assert (results["B17"].outcome, "escape" in results["B17"].detail) == ("pass", True)


def usage_dropped(events: list[AgentEvent]) -> list[AgentEvent]:
    return [replace(e, tokens=Tokens(input=0, output=0)) if isinstance(e, Completed) else e for e in events]


def result_before_call(events: list[AgentEvent]) -> list[AgentEvent]:
    order = {"tool_result": 1, "tool_use": 2, "completed": 3, "error": 3}
    return sorted(events, key=lambda event: order.get(event.kind, 0))


def cost_times_100(events: list[AgentEvent]) -> list[AgentEvent]:
    return [
        replace(e, cost_usd=e.cost_usd * 100) if isinstance(e, Completed) and e.cost_usd is not None else e
        for e in events
    ]


def results_cut(events: list[AgentEvent]) -> list[AgentEvent]:
    return [replace(e, content=e.content[:40]) if isinstance(e, ToolResult) else e for e in events]


def parent_lost(events: list[AgentEvent]) -> list[AgentEvent]:
    return [replace(e, parent_tool_call_id=None) for e in events]


@pytest.mark.parametrize(
    ("bug", "number"),
    [
        (usage_dropped, "B22"),
        (result_before_call, "B29"),
        (cost_times_100, "B23 B30"),
        (results_cut, "B05"),
        (parent_lost, "B28"),
    ],
)
async def test_a_bug_of_the_adapter_is_found(
    good: Stage, actors: Actors, bug: Callable[[list[AgentEvent]], list[AgentEvent]], number: str
) -> None:
    actors.bug = bug
    report = await tried(good)
    assert [result.number for result in report.results if result.outcome == "fail"] == number.split()
    assert not report.ok


async def test_a_subagent_whose_work_cannot_be_seen_is_no_failure(good: Stage, actors: Actors) -> None:
    scripts: list[list[AgentEvent]] = [[S, *tool("Task", "done"), end()], [S, end()]]
    for events in scripts:
        actors.script["delegate"] = events
        assert (await outcomes(good))["B28"] == "unsupported"


async def test_the_parser_is_held_to_its_contracts_with_what_was_printed(
    good: Stage, actors: Actors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "ctr.log"
    log.write_bytes(b'2026-07-01T10:00:00.000000001Z stdout F {"no": "echo"}\n')
    monkeypatch.setattr(actors, "log_path", lambda *_args, **_more: _done(log))
    report = await tried(good)
    [broken] = [result for result in report.results if result.outcome == "fail"]
    assert broken.number == "B29"
    assert "C11 every line of a recording is understood" in broken.detail


async def _done(value: Path) -> Path:
    return value


async def test_where_recordings_go_is_tried_before_any_run_is_made(good: Stage, actors: Actors, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="no recordings can be written"):
        await bench(good, jobs=4, progress=lambda text: None, record_to=tmp_path / "file" / "recordings")
    assert actors.requests == []


async def test_usage_that_is_not_reported(good: Stage, actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = end("Hello there.", tokens=Tokens(input=0, output=0))
    actors.script["text"] = [S, *say("Hello there."), silent]
    assert (await outcomes(good))["B22"] == "fail", "the adapter says that the CLI reports it"
    monkeypatch.setattr(BenchAdapter, "reports_usage", False)
    assert (await outcomes(good))["B22"] == "unsupported"


@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(input=900, output=6, cache_read=0),
        Tokens(input=1200, output=12, cache_read=300),
        Tokens(input=600, output=6, cache_read=300),
    ],
)
async def test_counts_that_are_not_the_providers_are_found(good: Stage, actors: Actors, tokens: Tokens) -> None:
    actors.script["text"] = [S, *say("Hello there."), end("Hello there.", tokens=tokens)]
    assert (await outcomes(good))["B22"] == "fail"


async def test_a_cli_may_count_cached_tokens_among_those_of_the_prompt(good: Stage, actors: Actors) -> None:
    tokens = Tokens(input=1200, output=7, cache_read=300)
    actors.script["text"] = [S, *say("Hello there."), end("Hello there.", tokens=tokens)]
    assert (await outcomes(good))["B22"] == "pass"


async def test_a_scene_that_breaks_fails_its_checks_alone(good: Stage, actors: Actors) -> None:
    del actors.script["edit"]
    report = await tried(good)
    failed = {r.number: r.detail for r in report.results if r.outcome == "fail"}
    assert list(failed) == ["B06"]
    assert "KeyError" in failed["B06"]


def test_every_check_has_a_number_of_its_own_in_order() -> None:
    assert [check.number for check in CHECKS] == sorted({check.number for check in CHECKS})
