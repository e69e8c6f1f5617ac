import asyncio
import io
from typing import Any

import pytest

from orchestrator.cli.ui import output as module
from orchestrator.cli.ui.console import SafeConsole
from orchestrator.cli.ui.output import Output, awaited_after
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


async def shown(monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], *, terminal: bool) -> str:
    """All that goes to stdout and stderr, which are one terminal, when ``event`` comes and then nothing for a while."""
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.5)
    file = io.StringIO()
    output = Output()
    output.out = output.err = SafeConsole(file=file, force_terminal=terminal, color_system=None, width=80)
    output.transcript = Transcript(output.out)
    async with output.watched():
        output.event(event)
        await asyncio.sleep(1.3)
        output.event({"kind": "tool_result", "data": {"tool_call_id": "t", "content": "done"}})
    return file.getvalue()


TOOL = {"kind": "tool_use", "data": {"tool_call_id": "t", "name": "Bash", "input": {}}}


async def test_silence_is_explained_in_a_terminal_and_the_words_go_when_something_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = await shown(monkeypatch, TOOL, terminal=True)
    assert text == "● Bash\n· waiting for the tool Bash, 1 s\r\x1b[K  └ done\n"


async def test_no_word_into_a_pipe_or_into_an_open_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "waiting" not in await shown(monkeypatch, TOOL, terminal=False)
    delta = {"kind": "message_delta", "data": {"text": "half a", "message_id": "m"}}
    assert "waiting" not in await shown(monkeypatch, delta, terminal=True)
