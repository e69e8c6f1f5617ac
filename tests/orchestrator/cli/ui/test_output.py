import asyncio
import io
from typing import Any

import pytest

from orchestrator.cli.ui.console import SafeConsole
from orchestrator.cli.ui.output import SILENCE_SECONDS, Output, awaited_after
from orchestrator.cli.ui.render import Transcript


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "tool_use", "data": {"name": "Ba\x1b[2Jsh"}}, "the tool Bash"),
        ({"kind": "status", "data": {"phase": "starting"}}, "the container"),
        ({"kind": "message_delta", "data": {}}, "the agent"),
        ({"kind": "status"}, "the agent"),
    ],
)
def test_what_is_waited_for(event: dict[str, Any], words: str) -> None:
    assert awaited_after(event) == words


class Clock:
    """Time passes when somebody sleeps, and stands still when silence has become long enough to be explained."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        if self.seconds >= SILENCE_SECONDS:
            await asyncio.Event().wait()
        self.seconds += seconds
        await asyncio.sleep(0)


async def shown(event: dict[str, Any], *, terminal: bool) -> str:
    """All that goes to stdout and stderr, which are one terminal, when ``event`` comes and then nothing for a while."""
    file, clock = io.StringIO(), Clock()
    output = Output(clock=clock.now, sleep=clock.sleep)
    output.out = output.err = SafeConsole(file=file, force_terminal=terminal, color_system=None, width=80)
    output.transcript = Transcript(output.out)
    async with output.watched():
        output.event(event)
        for _ in range(100):  # turns of the loop: more than all of that needs
            await asyncio.sleep(0)
        output.event({"kind": "tool_result", "data": {"tool_call_id": "t", "content": "done"}})
    assert clock.seconds == (SILENCE_SECONDS if terminal else 0), "nobody watches a pipe"
    return file.getvalue()


TOOL = {"kind": "tool_use", "data": {"tool_call_id": "t", "name": "Bash", "input": {}}}


async def test_silence_is_explained_in_a_terminal_and_the_words_go_when_something_comes() -> None:
    text = await shown(TOOL, terminal=True)
    assert text == "● Bash\n· waiting for the tool Bash, 5 s\r\x1b[K  └ done\n"


async def test_no_word_into_a_pipe_or_into_an_open_line() -> None:
    assert "waiting" not in await shown(TOOL, terminal=False)
    delta = {"kind": "message_delta", "data": {"text": "half a", "message_id": "m"}}
    assert "waiting" not in await shown(delta, terminal=True)
