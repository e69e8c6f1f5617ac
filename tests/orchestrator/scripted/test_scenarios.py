import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.scripted.scenarios import (
    BUG,
    CHECK,
    FIX,
    SAMPLE_FILES,
    SCENARIOS,
    SCRIPT,
    SIDE_ANSWER,
    SUBAGENT_PROMPT,
    named_in,
    play,
    spoken,
)
from orchestrator.scripted.steps import Conversation, Fail, Step, Stop, Text, ToolCall

TOOLS = ("Bash", "Read", "Write", "Edit", "Agent")


def talk(
    *prompts: str, rounds: int = 0, results: tuple[str, ...] = (), failed: bool = False, tools: tuple[str, ...] = TOOLS
) -> Conversation:
    return Conversation(
        prompts=prompts or ("do it",),
        rounds=rounds,
        results=results,
        failed=tuple(failed for _ in results),
        tools=tools,
    )


def command(steps: Sequence[Step]) -> str:
    (call,) = [step for step in steps if isinstance(step, ToolCall)]
    return str(call.args["command"])


@pytest.mark.parametrize(
    ("prompts", "name"),
    [
        (("scenario: shell",), "shell"),
        (("Please.\n  scenario:edit  \nThanks.",), "edit"),
        (("scenario: shell", "and now"), "shell"),
        (("scenario: shell", "scenario: 401"), "401"),
        (("a scenario: shell in a sentence",), None),
        (("nothing",), None),
    ],
)
def test_the_newest_prompt_that_names_a_scenario_decides(prompts: tuple[str, ...], name: str | None) -> None:
    assert named_in(talk(*prompts)) == name


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_answers_every_round(name: str) -> None:
    for rounds in range(8):
        assert play(name, talk(rounds=rounds, results=("x",) * rounds))
    last = play(name, talk(rounds=7, results=("x",) * 7))
    assert not any(isinstance(step, ToolCall) for step in last), "a story must come to an end"


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_side_request_never_takes_part_in_a_story_with_tools(name: str) -> None:
    steps = play(name, talk("RUN: true", tools=()))
    assert not any(isinstance(step, ToolCall) for step in steps)
    if any(isinstance(step, ToolCall) for step in play(name, talk("RUN: true"))):
        assert steps == [Text(SIDE_ANSWER)]
        assert play(name, talk("RUN: true", rounds=7, results=("x",) * 7, tools=())) == [Text(SIDE_ANSWER)]


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 529])
def test_three_digits_fail_with_that_status(status: int) -> None:
    assert play(str(status), talk()) == [Fail(status)]


def test_an_unknown_scenario_says_which_there_are() -> None:
    (step,) = play("shel", talk())
    assert isinstance(step, Fail)
    assert step.status == 400
    assert "shell" in str(step.message)


@pytest.mark.parametrize(
    ("prompt", "run"),
    [
        ("RUN: env | sort", "env | sort"),
        ("scenario: dump\nRUN:  cat /proc/1/environ  \nthanks", "cat /proc/1/environ"),
        ("RUN:\nset -e\necho one\necho two\n", "set -e\necho one\necho two"),
    ],
)
def test_dump_runs_what_the_prompt_says(prompt: str, run: str) -> None:
    assert command(play("dump", talk(prompt))) == run


def test_dump_tells_what_the_command_printed() -> None:
    assert play("dump", talk("RUN: id", rounds=1, results=("uid=1000",))) == [
        Text("The command printed:\nuid=1000", 200)
    ]


def test_dump_without_a_command_says_so() -> None:
    (step,) = play("dump", talk("please RUN: id"))
    assert isinstance(step, Text)
    assert "RUN:" in step.text


def test_remember_quotes_the_first_prompt() -> None:
    (step,) = play("remember", talk("scenario: remember\nThe word\nis plover.", "Which word?"))
    assert step == Text("This is prompt number 2. The first was: The word is plover.")


def test_a_sub_agent_gets_a_story_of_its_own() -> None:
    main, inner = play("delegate", talk()), play("delegate", talk(SUBAGENT_PROMPT))
    assert any(isinstance(step, ToolCall) and step.tool == "agent" for step in main)
    assert any(isinstance(step, ToolCall) and step.tool == "shell" for step in inner)


def test_a_sub_agent_names_its_scenario_whatever_the_default_is() -> None:
    assert named_in(talk(SUBAGENT_PROMPT)) == "delegate"


def test_demo_leaves_a_foreign_repository_alone() -> None:
    steps = play("demo", talk(rounds=2, results=("", "File does not exist."), failed=True))
    assert not any(isinstance(step, ToolCall) for step in steps)


@pytest.mark.parametrize(("failed", "word"), [(False, "passes now"), (True, "still fails")])
def test_demo_tells_the_outcome_as_it_is(failed: bool, word: str) -> None:
    (step,) = play("demo", talk(rounds=4, results=("",) * 4, failed=failed))
    assert isinstance(step, Text)
    assert word in step.text


def test_huge_is_huge() -> None:
    (step,) = play("huge", talk())
    assert isinstance(step, Text)
    assert len(step.text) > 2_500_000


def test_maxtok_stops_for_length() -> None:
    assert Stop("max_tokens") in play("maxtok", talk())


def test_what_a_scenario_says_is_known_beforehand() -> None:
    assert spoken("text") == "Hello from the scripted provider. There is nothing else to do."
    assert spoken("gate") == "Before the gate. Behind the gate."
    assert len(spoken("huge")) > 2_000_000
    assert spoken("no-such-scenario") == spoken("busy") == ""


def check(repo: Path) -> tuple[int, str]:
    done = subprocess.run(["sh", CHECK], cwd=repo, capture_output=True, text=True, timeout=10, check=False)
    return done.returncode, done.stdout


def test_the_bug_and_its_fix(tmp_path: Path) -> None:
    for name, content in SAMPLE_FILES.items():
        (tmp_path / name).write_text(content)
    assert check(tmp_path) == (1, "FAILED: wanted hello-container-world, got hello_container_world\n")
    assert SAMPLE_FILES[SCRIPT].count(BUG) == 1
    (tmp_path / SCRIPT).write_text(SAMPLE_FILES[SCRIPT].replace(BUG, FIX))
    assert check(tmp_path) == (0, "ok: hello-container-world\n")
