"""What the CLI is started with: the recap in the prompt, where it cannot resume (C9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.contract.runs import RunRecord
from orchestrator.runs.launch.command import RECAP_MAX_CHARS, with_recap
from tests.fakes.adapter import EchoAdapter
from tests.orchestrator.runs.harness import World, answer

LEAD = "This conversation has been going on for a while. What was said so far:"


def ended(query: str, final_text: str | None) -> RunRecord:
    """A finished run of which only what was said matters."""
    values: dict[str, Any] = dict.fromkeys(RunRecord.__dataclass_fields__)
    outcome = "completed" if final_text is not None else "failed"
    return RunRecord(**{**values, "query": query, "final_text": final_text, "outcome": outcome})


def test_the_first_query_stands_alone() -> None:
    assert with_recap([], "do it") == "do it"


def test_what_was_said_comes_in_its_order_and_the_query_last() -> None:
    assert with_recap([ended("two", "zwei"), ended("one", "eins")], "three") == (
        f"{LEAD}\n\nUser: one\n\nYou: eins\n\nUser: two\n\nYou: zwei\n\n"
        "That was the conversation so far. Go on with it. What the user says now:\n\nthree"
    )


def test_a_run_without_an_answer_is_shown_as_such() -> None:
    assert "User: one\n\nYou: (no answer: the run did not complete)" in with_recap([ended("one", None)], "two")


def test_the_oldest_is_left_out_and_cut_first() -> None:
    half = "x" * (RECAP_MAX_CHARS // 2)
    prompt = with_recap([ended("new", half), ended("old", half), ended("oldest", "?")], "q" * 10)
    assert len(prompt) < RECAP_MAX_CHARS + 300
    assert prompt.index("User: old\n") < prompt.index("User: new\n")
    assert prompt.count("…[cut]") == 1
    assert "oldest" not in prompt
    assert prompt.endswith("q" * 10)


class Forgetful(EchoAdapter):
    supports_resume = False


async def test_c9_only_a_cli_that_cannot_resume_gets_a_recap(tmp_path: Path) -> None:
    for adapter, expected in ((EchoAdapter(), "two"), (Forgetful(), None)):
        root = tmp_path / type(adapter).__name__
        root.mkdir()
        world = World(root)
        async with world.service() as service:
            service.adapters["echo"] = adapter
            first = await service.submit("one")
            answer(await service.container(), "eins")
            await service.finished(first.run_id)
            second = await service.submit("two", subagent_id=first.subagent_id)
            container = await service.container()
            prompt = (world.paths.control_dir(second.run_id) / "prompt").read_text()
            assert prompt == (expected or with_recap([ended("one", "eins")], "two"))
            answer(container, "zwei")
            await service.finished(second.run_id)
