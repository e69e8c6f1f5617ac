import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.cli.commands.run import latest_subagent, size
from orchestrator.cli.ui.output import envelope
from orchestrator.config.models import Paths
from tests.fakes.api_server import CANCELLED, CHANGES, HELLO, FakeApi, Step, ThreadedApi, make_events, make_run
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.process import ROOT, podmentor
from tests.orchestrator.cli.ui.test_render import everywhere

pytestmark = pytest.mark.usefixtures("paths")


def test_a_run_on_a_running_service(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    found = invoke("run", "claude-code", "do it")
    assert found.exit_code == 0, found.output
    assert "● Bash  ls -la\n  └ a.txt\n" in found.stdout
    assert found.stdout.count("All done.") == 1
    assert "✓ completed in 3.5 s · 900 tokens in" in found.stdout
    assert "2 files changed, +1 -1" in found.stdout
    assert "--subagent sub_1" in found.stdout
    assert "\x1b" not in found.output
    assert "no service is running" not in found.output
    assert api.bodies == [{"backend": "claude-code", "query": "do it"}]
    assert api.keys[0]


def test_a_run_without_a_service(invoke: Invoke, embedded: None, paths: Paths) -> None:
    found = invoke("run", "claude-code", "do it")
    assert found.exit_code == 0, found.output
    assert "no service is running: this command does its work" in found.stderr
    assert "All done." in found.stdout
    assert not paths.lock_file.exists()


def test_every_option_reaches_the_service(invoke: Invoke, api: FakeApi, served: ThreadedApi, place: Path) -> None:
    found = invoke(
        "run",
        "codex",
        "x",
        "--repo",
        str(place / "cwd"),
        "--tier",
        "1",
        "--timeout",
        "1.5",
        "--idle",
        "30",
        "--cpus",
        "0.5",
        "--memory",
        "512m",
        "--disk",
        "3g",
        "--workspace",
        "direct",
    )
    assert found.exit_code == 0, found.output
    assert api.bodies == [
        {
            "backend": "codex",
            "query": "x",
            "repo": str(place / "cwd"),
            "tier": 1,
            "workspace": "direct",
            "limits": {
                "wall_clock_seconds": 1.5,
                "idle_seconds": 30.0,
                "cpus": 0.5,
                "memory_max_bytes": 512 * 1024**2,
                "disk_max_bytes": 3 * 1024**3,
            },
        }
    ]


@pytest.mark.parametrize(
    ("args", "sent"),
    [(["--egress", "pypi.org", "--egress", "*.example.org"], ["pypi.org", "*.example.org"]), (["--no-egress"], [])],
)
def test_what_the_run_may_reach_is_narrowed(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, args: list[str], sent: list[str]
) -> None:
    assert invoke("run", "claude-code", "x", *args).exit_code == 0
    assert api.bodies[0]["egress"] == sent


def test_the_model_is_passed_on(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    assert invoke("run", "claude-code", "x", "--model", "opus[1m]").exit_code == 0
    assert api.bodies[0]["model"] == "opus[1m]"


def test_a_subagent_is_gone_on_with_by_the_beginning_of_its_id(
    invoke: Invoke, api: FakeApi, served: ThreadedApi
) -> None:
    api.subagents = [{"subagent_id": "abc1"}, {"subagent_id": "abd2"}]
    assert invoke("run", "claude-code", "x", "--subagent", "abc").exit_code == 0
    assert api.bodies[0]["subagent_id"] == "abc1"
    assert invoke("run", "claude-code", "x", "--subagent", "ab").exit_code == 2
    assert invoke("run", "claude-code", "x", "--subagent", "zz").exit_code == 5
    assert len(api.bodies) == 1


def test_a_detached_run_is_left_to_the_service(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    api.stop_short = 2
    found = invoke("run", "claude-code", "x", "--detach")
    assert (found.exit_code, found.stdout, found.stderr) == (
        0,
        "run_1\n",
        "· not in a git repo: the agent begins with an empty workspace (--repo names one)\n",
    )
    found = invoke("run", "claude-code", "x", "-d", "--json")
    assert json.loads(found.stdout) == {"run_id": "run_1", "subagent_id": "sub_1"}
    assert api.cancelled == 0


def test_there_is_nobody_to_leave_a_run_to_without_a_service(invoke: Invoke, embedded: None) -> None:
    found = invoke("run", "claude-code", "x", "--detach")
    assert found.exit_code == 3
    assert "podmentor serve" in found.stderr


def test_no_run_is_left_to_a_service_that_ends_with_another_command(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, place: Path
) -> None:
    api.embedded = True
    found = invoke("run", "claude-code", "x", "--detach")
    assert found.exit_code == 3
    assert "inside another podmentor command" in found.stderr
    assert "podmentor serve" in found.stderr
    assert api.bodies == []
    assert invoke("run", "claude-code", "x").exit_code == 0


def test_continue_takes_the_latest_of_this_repo_and_backend(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, place: Path
) -> None:
    (place / "cwd/.git").mkdir()
    here = {"backend": "claude-code", "repo": str(place / "cwd")}
    api.subagents = [
        {**here, "subagent_id": "old", "last_used_at": "2026-05-01T10:00:00Z"},
        {**here, "subagent_id": "new", "last_used_at": "2026-05-02T10:00:00Z"},
        {**here, "subagent_id": "other", "last_used_at": "2026-05-03T10:00:00Z", "backend": "codex"},
        {**here, "subagent_id": "elsewhere", "last_used_at": "2026-05-03T10:00:00Z", "repo": "/srv/x"},
    ]
    found = invoke("run", "claude-code", "x", "--continue")
    assert found.exit_code == 0, found.output
    assert "going on with subagent new" in found.stderr
    assert api.bodies == [{"backend": "claude-code", "query": "x", "subagent_id": "new"}]
    none = invoke("run", "claude-code", "x", "--continue", "--no-repo")
    assert none.exit_code == 5
    assert "no subagent of claude-code on an empty workspace" in none.stderr


def test_a_named_repo_is_the_one_at_its_path() -> None:
    one = {"subagent_id": "a", "backend": "b", "last_used_at": "2026", "repo": "web"}
    names = {"web": Path("/srv/web")}
    assert latest_subagent([one], backend="b", repo="/srv/web", names=names) == "a"
    assert latest_subagent([{**one, "repo": "/srv/web"}], backend="b", repo="web", names=names) == "a"


def test_a_backend_that_only_lacks_its_key_says_which(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    refusal = (404, {"code": "unknown_backend", "detail": "there is no backend 'codex'", "status": 404})
    api.refuse = [refusal, refusal]
    found = invoke("run", "codex", "x")
    assert found.exit_code == 5
    assert "hint: set $OPENAI_API_KEY" in found.stderr
    assert "podmentor backends lists" in invoke("run", "other", "x").stderr


@pytest.mark.parametrize("prompt", ["- fix it", "--fix it", "-fix"])
def test_a_prompt_that_looks_like_an_option_is_explained(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, prompt: str
) -> None:
    found = invoke("run", "claude-code", prompt)
    assert found.exit_code == 2
    assert "begins with - goes behind --" in found.stderr
    assert invoke("run", "claude-code", "--", prompt).exit_code == 0
    assert api.bodies[0]["query"] == prompt


def test_a_repo_that_the_service_user_cannot_enter_is_an_error(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODMENTOR_CLOSED_REPO", "/root/repo")
    found = invoke("run", "claude-code", "x")
    assert found.exit_code == 2
    assert "/root/repo cannot be read by the user" in found.stderr
    assert "not in a git repo" not in found.output
    assert invoke("run", "claude-code", "x", "--no-repo").exit_code == 0


def test_the_git_repo_around_is_the_default(invoke: Invoke, api: FakeApi, served: ThreadedApi, place: Path) -> None:
    (place / "cwd/.git").mkdir()
    api.subagents = [{"subagent_id": "sub_1"}]
    invoke("run", "claude-code", "x")
    invoke("run", "claude-code", "x", "--no-repo")
    invoke("run", "claude-code", "x", "--subagent", "sub_1")
    assert [body.get("repo") for body in api.bodies] == [str(place / "cwd"), None, None]
    assert api.bodies[2]["subagent_id"] == "sub_1"


@pytest.mark.parametrize(("args", "text"), [(["-"], "from stdin\n"), ([], "from stdin\n"), ([], "ü\n")])
def test_the_prompt_from_standard_input(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, args: list[str], text: str
) -> None:
    assert invoke("run", "claude-code", *args, stdin=text).exit_code == 0
    assert api.bodies[0]["query"] == text


@pytest.mark.parametrize(
    "args",
    [
        ["  "],
        ["-"],
        ["x", "--json", "--quiet"],
        ["x", "--repo", ".", "--no-repo"],
        ["x", "--memory", "lots"],
        ["x", "--timeout", "0"],
        ["x", "--tier", "2"],
        ["x", "--repo", "nope"],
        ["x", "--egress", "a.example", "--no-egress"],
        ["x", "--continue", "--subagent", "a"],
        ["x", "--cpus", "0"],
    ],
)
def test_wrong_usage(invoke: Invoke, api: FakeApi, served: ThreadedApi, args: list[str]) -> None:
    found = invoke("run", "claude-code", *args, stdin="")
    assert found.exit_code == 2
    assert "Traceback" not in found.output
    assert api.bodies == []


def test_json(invoke: Invoke, served: ThreadedApi) -> None:
    found = invoke("run", "claude-code", "x", "--json")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert lines[:-1] == make_events("run_1", HELLO)
    result = lines[-1]
    assert (result["kind"], result["outcome"], result["exit_code"]) == ("result", "completed", 0)
    assert result["envelope"] == "[Subagent ID: sub_1 - Use this ID to continue this conversation] All done."
    assert result["changes"] == CHANGES
    assert found.stderr == ""


def test_quiet(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    found = invoke("run", "claude-code", "x", "--quiet")
    assert (found.stdout, found.stderr) == ("All done.\n", "")
    api.run = make_run("run_1", outcome="failed", error={"reason": "cli_failed", "message": "it\x1b[2J broke"})
    failed = invoke("run", "claude-code", "x", "-q")
    assert (failed.stdout, failed.exit_code) == ("", 1)
    assert failed.stderr == "error: it broke [cli_failed]\n"


@pytest.mark.parametrize(
    ("reason", "code"), [("timeout", 124), ("auth_rejected", 4), ("image_missing", 3), ("cli_failed", 1)]
)
def test_exit_codes_of_runs(invoke: Invoke, api: FakeApi, served: ThreadedApi, reason: str, code: int) -> None:
    error = {"reason": reason, "message": "why", "details": {}}
    api.steps = [("error", error)]
    api.run = make_run("run_1", outcome="failed", error=error)
    found = invoke("run", "claude-code", "x")
    assert found.exit_code == code
    assert f"✗ {reason}: why" in found.stdout
    as_json = invoke("run", "claude-code", "x", "--json")
    assert json.loads(as_json.stdout.splitlines()[-1])["exit_code"] == as_json.exit_code == code


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "invalid_request", 2),
        (401, "unauthorized", 4),
        (404, "unknown_backend", 5),
        (429, "queue_full", 3),
        (424, "auth_required", 4),
        (503, "image_missing", 3),
    ],
)
def test_exit_codes_of_refusals(
    invoke: Invoke, api: FakeApi, served: ThreadedApi, status: int, code: str, exit_code: int
) -> None:
    api.refuse = [(status, {"code": code, "detail": "because", "status": status})]
    found = invoke("run", "claude-code", "x")
    assert found.exit_code == exit_code
    assert f"error: because [{code}]\n" in found.stderr
    assert "Traceback" not in found.output


def test_a_service_that_is_stopping_is_asked_again_with_the_same_key(
    invoke: Invoke, api: FakeApi, served: ThreadedApi
) -> None:
    api.refuse = [(503, {"code": "shutting_down", "detail": "stopping", "status": 503})] * 2
    assert invoke("run", "claude-code", "x").exit_code == 0
    assert len(api.keys) == 3
    assert len(set(api.keys)) == 1


def test_a_broken_stream_loses_and_doubles_nothing(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    api.cut_after = [4, 0, 3]
    found = invoke("run", "claude-code", "x", "--json")
    assert [json.loads(line).get("seq") for line in found.stdout.splitlines()] == [*range(1, 12), None]


def hostile_api() -> tuple[list[Step], dict[str, Any]]:
    text = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
    steps = [step for step in everywhere(text) if step[0] not in {"completed", "error"}]
    steps.append(("completed", {"final_text": text, "tokens": {}}))
    return steps, make_run("run_1", final_text=text, backend=text, subagent_id="sub_1", query=text)


def test_hostile_output_does_nothing_to_a_terminal(invoke: Invoke, api: FakeApi, served: ThreadedApi) -> None:
    api.steps, api.run = hostile_api()
    for option in ([], ["--quiet"], ["--json"]):
        found = invoke("run", "claude-code", "x", *option)
        assert found.exit_code == 0, found.output
        assert all(char in "\t\n" or char.isprintable() for char in found.output), repr(found.output)


def test_in_a_real_terminal_the_only_sequences_are_colours(api: FakeApi, served: ThreadedApi) -> None:
    api.steps, api.run = hostile_api()
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.cli_main", "run", "claude-code", "x"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
    ) as process:
        os.close(slave)
        written = b""
        try:
            while piece := os.read(master, 65536):
                written += piece
        except OSError:
            written += b""  # Linux: EIO says that the other side is closed
        assert process.wait(timeout=30) == 0
    os.close(master)
    text = written.decode()
    assert "\x1b[" in text
    rest = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert all(char in "\t\r\n" or char.isprintable() for char in rest), repr(rest)


async def test_ctrl_c_cancels_the_run_and_waits_for_its_end() -> None:
    async with podmentor("run", "claude-code", "x", PODMENTOR_FAKE='{"hang": true}') as command:
        await command.until("All done.")
        command.signal(signal.SIGINT)
        assert await command.end() == 130
    assert "cancelling" in command.text
    assert "✗ cancelled: cancelled by the user" in command.text
    assert "■ cancelled" in command.text
    assert "Traceback" not in command.text


async def test_ctrl_c_in_json_mode() -> None:
    async with podmentor("run", "claude-code", "x", "--json", PODMENTOR_FAKE='{"hang": true}') as command:
        await command.until('"message_id":"m2"')
        command.signal(signal.SIGINT)
        assert await command.end() == 130
    result = json.loads(command.text.splitlines()[-1])
    assert (result["kind"], result["outcome"], result["exit_code"]) == ("result", "cancelled", 130)


async def test_a_second_ctrl_c_leaves_at_once(api: FakeApi, served: ThreadedApi, paths: Paths) -> None:
    """The service does not end the run (as far as it seems from here), so only the second one gets us out."""
    api.stop_short = 5
    async with podmentor("run", "claude-code", "x") as command:
        await command.until("I look first.")
        command.signal(signal.SIGINT)
        await command.until("cancelling")
        command.signal(signal.SIGINT)
        assert await command.end() == 130
    assert api.cancelled == 1
    assert "Traceback" not in command.text


async def test_sigterm_cancels_as_well() -> None:
    async with podmentor("run", "claude-code", "x", PODMENTOR_FAKE='{"hang": true}') as command:
        await command.until("All done.")
        command.signal(signal.SIGTERM)
        assert await command.end() == 130
    assert "✗ cancelled" in command.text


async def test_ctrl_c_while_waiting_for_a_service(paths: Paths) -> None:
    paths.lock_file.touch()
    async with podmentor("-vv", "run", "claude-code", "x") as command:
        await command.until("looking for a service")
        command.signal(signal.SIGINT)
        assert await command.end() == 130
    assert "Traceback" not in command.text


async def test_a_reader_that_goes_away_cancels_the_run(api: FakeApi, served: ThreadedApi) -> None:
    api.stop_short = 2
    async with podmentor("run", "claude-code", "x") as command:
        await command.until("starting the container")
        command.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # like `| head -2`
        served.do(api.release())
        assert await command.process.wait() == 1
    assert api.cancelled == 1


def test_sizes() -> None:
    assert [size(text) for text in ("1048576", "512m", "2g", "1.5GiB", "10 KB")] == [
        1048576,
        512 * 1024**2,
        2 * 1024**3,
        1536 * 1024**2,
        10240,
    ]
    for text in ("", "m", "-1", "0", "1x", "1e9"):
        with pytest.raises(click.BadParameter):
            size(text)


def test_the_envelope() -> None:
    """C12: one line of prefix, the text untouched."""
    assert envelope(make_run("r", final_text="a\n[x]")) == (
        "[Subagent ID: sub_1 - Use this ID to continue this conversation] a\n[x]"
    )
    failed = envelope(make_run("r", outcome="failed", error=CANCELLED[1]))
    assert failed.endswith("] Error (cancelled): cancelled by the user")
