"""The scenes that all backends share: each CLI in its real container, against the scripted provider.

A backend's scenes are played once, by the bench; each test here looks at what was seen.
"""

from __future__ import annotations

import pytest

from orchestrator.bench.scenes import TIMEOUT_SECONDS
from orchestrator.bench.seen import PACKAGED, entry_of, read
from orchestrator.testing.conformance import load_all
from tests.adapters.registered import adapters
from tests.podman.backends import FACTS, Played, play, shape

pytestmark = [pytest.mark.podman, pytest.mark.timeout(900)]
BACKENDS = sorted((name for name, adapter in adapters().items() if adapter.transport == "subprocess"), reverse=True)
"""Those that take longest first, as it happens."""


@pytest.fixture(scope="module", params=BACKENDS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(request.param, tmp_path_factory.mktemp(request.param))


def test_every_backend_is_played() -> None:
    assert {*FACTS} == {*BACKENDS}


def test_no_check_of_the_bench_fails_and_the_capabilities_are_the_published_ones(played: Played) -> None:
    found = {result.number: f"{result.outcome}: {result.detail}" for result in played.report.results}
    entry, published = entry_of(played.report), read(PACKAGED)[played.report.backend]
    assert entry["checks"] == published["checks"], found
    assert entry["capabilities"] == published["capabilities"], found
    assert entry["declared"] == published["declared"]
    assert entry["cli_version"] == published["cli_version"]
    assert played.report.ok


def test_the_command_says_so(played: Played) -> None:
    bad = [result for result in played.found["results"] if result["outcome"] not in {"pass", "unsupported"}]
    assert (bad, played.found["ok"], played.exit_code) == ([], True, 0)
    assert played.found["cli_version"] == played.report.cli_version
    assert played.found["capabilities"] == played.report.capabilities
    if played.report.backend == "codex":  # in bounded time: the others are slower by nature
        assert played.found["timings"]["bench"] < 300


def test_every_scenario_ends_as_it_should(played: Played) -> None:
    runs = {name: played.run(name) for name in played.facts.ends}
    wrong = {
        name: runs[name].how
        for name, end in played.facts.ends.items()
        if (runs[name].record.outcome, runs[name].reason) != end
    }
    assert wrong == {}


def test_a_plain_answer(played: Played) -> None:
    run = played.run("text")
    record = run.record
    assert record.envelope() == (
        f"[Subagent ID: {record.subagent_id} - Use this ID to continue this conversation] "
        "Hello from the scripted provider. There is nothing else to do."
    )
    assert shape(run) == [
        "status:queued",
        "status:starting",
        "status:running",
        "session_started",
        "message_delta",
        "completed",
    ]
    assert not {"retrying", "unparsed"} & set(run.phases())
    assert "diagnostic" not in run.phases() or not played.facts.quiet
    assert record.usage["tokens"].items() >= played.facts.tokens.items()
    assert record.usage["peak_memory_bytes"] > 10_000_000
    assert record.enforcement["memory_max_bytes"] in {"cgroup", "watchdog"}
    assert record.exit_code == 0
    assert record.cli_version == played.report.cli_version
    assert [f"{request.method} {request.path}" for request in played.plain] == played.facts.requests


def test_an_edit_is_made_by_the_clis_own_tools(played: Played) -> None:
    run = played.run("edit")
    uses = [event.data for event in run.of("tool_use")]
    assert [use["name"] for use in uses] == [name for name, _ in played.facts.edits]
    for use, (_, expected) in zip(uses, played.facts.edits, strict=True):
        assert expected is None or use["input"] == expected
    results = {result["tool_call_id"]: result["is_error"] for result in played.results("edit")}
    assert [results[use["tool_call_id"]] for use in uses] == [False, False]


def test_tools_that_work_and_tools_that_fail_are_told_apart(played: Played) -> None:
    assert [result["is_error"] for result in played.results("shell")] == [False]
    assert [result["is_error"] for result in played.results("tools2")] == [False, False]
    [failed] = played.results("fail")
    assert failed["is_error"] is played.facts.failed_tool
    assert {"out", "err"} <= set(failed["content"].split())
    # Codex prints no line for a tool that it does not know; its log on stderr is all there is.
    notes = [str(event.data.get("stderr")) for event in played.run("badtool").of("status")]
    reported = [result["is_error"] for result in played.results("badtool")]
    assert reported == [True] or any("no_such_tool" in note for note in notes)


def test_the_work_of_a_subagent_is_told_as_its_own(played: Played) -> None:
    if not played.facts.delegates:
        return
    events = [event for event in played.run("delegate").events if event.kind in played.facts.delegates]
    [call, *_] = [event.data["tool_call_id"] for event in events if event.kind == "tool_use"]
    assert {event.parent_tool_call_id for event in events} == {None, call}


def test_retries_are_told_one_by_one(played: Played) -> None:
    for scenario, attempts in played.facts.retries.items():
        reported = [event.data["attempt"] for event in played.run(scenario).of("status") if "attempt" in event.data]
        assert reported == attempts if attempts is not None else reported, scenario
    # Text that broke off comes as it came, once for each attempt at most.
    broken = [event.data["text"] for event in played.run("cut").of("message_delta")]
    assert broken
    assert set("".join(broken).replace("This answer breaks", "\0")) == {"\0"}
    for scenario, count in played.facts.asked.items():
        asked = [request for request in played.requests if request.scenario == scenario]
        assert len(asked) == count, f"{scenario}: the CLI tries again, and not for ever"


def test_reasoning_and_odd_text_come_as_they_were(played: Played) -> None:
    thinking = "".join(event.data["text"] for event in played.run("thinking").of("thinking"))
    assert thinking == ("The user wants a greeting. I keep it short." if played.facts.thinking else "")
    assert played.run("utf8").text.startswith("Grüße 🌍")


def test_a_conversation_goes_on_in_one_session(played: Played) -> None:
    runs = played.evidence.scenes["third"].runs
    assert [run.record.outcome for run in runs] == ["completed"] * 3
    assert len({run.record.subagent_id for run in runs}) == 1
    [session] = {event.data["session_id"] for run in runs for event in run.of("session_started")}
    assert [run.resumed for run in runs] == [None, session, session]
    for number, run in enumerate(runs, start=1):
        assert run.record.final_text == f"This is prompt number {number}. The first was: My name is Ada."
        # Codex itself tells the sum of all its runs.
        assert run.record.usage["tokens"] == runs[0].record.usage["tokens"]


def test_a_conversation_that_the_cli_has_lost_is_a_clear_error(played: Played) -> None:
    first, second = played.evidence.scenes["forgotten"].runs
    assert first.record.outcome == "completed"
    assert second.reason == "resume_failed"


def test_a_cancelled_run_and_one_that_takes_too_long_say_so(played: Played) -> None:
    cancelled = played.run("cancel")
    assert (cancelled.record.outcome, cancelled.reason) == ("cancelled", "cancelled")
    assert played.run("timeout").record.limits.wall_clock_seconds == TIMEOUT_SECONDS


def test_nothing_is_left_of_any_run(played: Played) -> None:
    assert len(list(played.evidence.runs())) > 25
    assert played.left == []


def test_the_recordings_are_good_ones(played: Played) -> None:
    recordings = load_all(played.recordings)
    assert {"text", "shell", "401"} <= {recording.name for recording in recordings}
    assert all(recording.expected for recording in recordings)
