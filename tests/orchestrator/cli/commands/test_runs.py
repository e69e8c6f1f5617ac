import json
import signal

import pytest

from tests.fakes.api_server import HELLO, FakeApi, ThreadedApi, make_events, make_run
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.process import podmentor


@pytest.fixture(autouse=True)
def some(api: FakeApi) -> None:
    api.runs = [
        make_run("run_abc1", query="first\x1b[2J\nprompt " + "x" * 200),
        make_run("run_abd2", state="running", outcome=None, finished_at=None, final_text=None),
        make_run("run_x", outcome="failed", error={"reason": "timeout", "message": "after 300 s"}),
    ]


def test_list(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    found = invoke("runs", "list", "--state", "finished", "--limit", "5")
    lines = found.output.splitlines()
    assert lines[0].split()[:2] == ["run", "backend"]
    assert [line.split()[0] for line in lines[1:]] == ["run_abc1", "run_abd2", "run_x"]
    assert "first prompt x" in lines[1]
    assert "3.5 s" in lines[1]
    assert "\x1b" not in found.output
    assert api.bodies == [{"state": "finished", "limit": "5"}]
    assert json.loads(invoke("runs", "list", "--json").output)["runs"] == api.runs


def test_list_of_a_subagent_by_the_beginning_of_its_id(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    api.subagents = [{"subagent_id": "abc1"}, {"subagent_id": "abd2"}]
    assert invoke("runs", "list", "--subagent", "abd").exit_code == 0
    assert api.bodies == [{"subagent_id": "abd2", "limit": "20"}]


def test_show_by_the_beginning_of_the_id(invoke: Invoke, served: ThreadedApi) -> None:
    found = invoke("runs", "show", "run_abc")
    assert found.exit_code == 0, found.output
    for text in (
        "run_abc1",
        "completed",
        "claude-code 2.1.0",
        "memory 2 GiB",
        "time 300 s",
        "128 MiB",
        "[Subagent ID: sub_1 - Use this ID to continue this conversation] All done.",
    ):
        assert text in found.output
    assert json.loads(invoke("runs", "show", "run_x", "--json").output)["error"]["reason"] == "timeout"


def test_ids_that_fit_none_or_several(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("runs", "show", "zzz").exit_code == 5
    several = invoke("runs", "show", "run_ab")
    assert several.exit_code == 2
    assert "is the beginning of several runs: run_abc1, run_abd2" in several.output
    assert invoke("runs", "show", "../x").exit_code == 2


def test_events_replay(invoke: Invoke, served: ThreadedApi) -> None:
    assert "● Bash  ls -la" in invoke("runs", "events", "run_abc").output
    lines = invoke("runs", "events", "run_1", "--json", "--after", "8", "--no-follow").output.splitlines()
    assert [json.loads(line) for line in lines] == make_events("run_1", HELLO)[8:]


def test_no_follow_ends_with_what_there_is(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    api.stop_short = 5
    assert invoke("runs", "events", "run_1", "--no-follow").output.endswith("I look first.\n")


async def test_leaving_a_followed_run_does_not_end_it(api: FakeApi, served: ThreadedApi) -> None:
    api.stop_short = 5
    async with podmentor("runs", "events", "run_1") as command:
        await command.until("I look first.")
        command.signal(signal.SIGINT)
        assert await command.end() == 130
    assert api.cancelled == 0
    assert "Traceback" not in command.text


def test_cancel(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("runs", "cancel", "run_abd").output == "run_1: cancelling\n"
    assert api.cancelled == 1


def test_allow(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("runs", "allow", "run_abd", "pypi.org").output == "run_1 may reach: a.example, pypi.org\n"
    assert invoke("runs", "allow", "run_abd", "pypi.org:8443", "--json").exit_code == 0
    assert invoke("runs", "allow", "run_abd", "[2001:db8::7]:22").exit_code == 0
    assert api.allowed == [
        {"host": "pypi.org"},
        {"host": "pypi.org", "port": 8443},
        {"host": "[2001:db8::7]", "port": 22},
    ]
    assert invoke("runs", "allow", "run_abd", "pypi.org:http").exit_code == 2
    assert len(api.allowed) == 3


def test_log_is_exact_in_a_pipe(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    api.log = b"2026 stdout F \xff\xfe\x1b[31m\n"
    assert invoke("runs", "log", "run_1").stdout_bytes == api.log


def test_without_a_service_the_command_is_the_service(invoke: Invoke, embedded: None) -> None:
    assert invoke("runs", "show", "run_1").exit_code == 0
