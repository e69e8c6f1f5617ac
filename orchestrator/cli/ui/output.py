"""A run as it is shown from its first event to its result: as a transcript, as JSON lines, or only its final text."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.exits import hint_of_run
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.render import Transcript
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.cli.ui.summary import print_summary
from orchestrator.system.tasks import TaskOwner

SILENCE_SECONDS = 5.0
"""Without an event, before it is said what is waited for."""
_ERASE = "\r\x1b[K"
_AFTER_PHASE = {"queued": "a free place", "starting": "the container", "retrying": "the provider"}


@dataclass
class Output:
    """Where and how a run is shown."""

    as_json: bool = False
    quiet: bool = False
    advice: bool = True
    """Say how to go on with the subagent."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.out = consoles.out()
        self.err = consoles.err()
        self.transcript = Transcript(self.out)
        self._last = self.clock()
        """When the last event came."""
        self._awaited = "the service"
        self._waiting = False
        """Whether the terminal's last line says what is waited for."""

    @property
    def plain(self) -> bool:
        """Whether people read along."""
        return not self.as_json and not self.quiet

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block lasts: in a terminal, say in silence what is waited for and how long already."""
        owner = TaskOwner("cli.output")
        if self.plain and self.out.is_terminal and self.err.is_terminal:
            owner.spawn(self._tell_silence(), name="silence")
        try:
            yield
        finally:
            await owner.aclose()
            self._erase()

    async def _tell_silence(self) -> None:
        while True:
            await self.sleep(1)
            silence = self.clock() - self._last
            if silence >= SILENCE_SECONDS and not self.transcript.in_line:
                self._erase()
                self._waiting = True
                words = f"· waiting for {self._awaited}, {int(silence)} s"
                self.err.out(words[: max(1, self.err.width - 1)], style="dim", end="", highlight=False)

    def _erase(self) -> None:
        if self._waiting:
            self._waiting = False
            self.err.file.write(_ERASE)
            self.err.file.flush()

    def remark(self, text: str) -> None:
        """Something beside the run itself."""
        if self.plain:
            self._erase()
            self.err.out(f"· {clean(text)}", style="dim", highlight=False)

    def event(self, event: Mapping[str, Any]) -> None:
        """The next event of the run."""
        self._erase()
        self._last, self._awaited = self.clock(), awaited_after(event)
        if self.as_json:
            click.echo(to_json(event))
        elif self.plain:
            self.transcript.feed(event)

    def cancelling(self) -> None:
        """The first Ctrl-C has come."""
        self._erase()
        self.transcript.close()
        self.err.out("· cancelling … (Ctrl-C again leaves at once)", style="yellow", highlight=False)

    def result(self, run: Mapping[str, Any], changes: list[dict[str, Any]] | None, exit_code: int) -> None:
        """The end."""
        self.transcript.close()
        if self.as_json:
            click.echo(to_json(result_line(run, changes, exit_code)))
        elif self.plain:
            print_summary(self.out, run, changes, hint=hint_of_run(run), advice=self.advice)
        elif run.get("outcome") == "completed":
            click.echo(clean(run.get("final_text") or ""))
        else:
            error = run.get("error") or {}
            self.err.out(f"error: {clean(str(error.get('message', 'the run failed')))} [{error.get('reason')}]")


def awaited_after(event: Mapping[str, Any]) -> str:
    """What a run waits for behind ``event``, in words."""
    data: Mapping[str, Any] = event.get("data") or {}
    match event.get("kind"):
        case "tool_use":
            return f"the tool {one_line(str(data.get('name', '?')), 40)}"
        case "status":
            return _AFTER_PHASE.get(str(data.get("phase")), "the agent")
        case "completed" | "error":
            return "the end"
        case _:
            return "the agent"


def result_line(run: Mapping[str, Any], changes: list[dict[str, Any]] | None, exit_code: int) -> dict[str, Any]:
    """The last line of --json."""
    names = (
        "run_id",
        "subagent_id",
        "backend",
        "state",
        "outcome",
        "final_text",
        "error",
        "usage",
        "limits",
        "enforcement",
    )
    return {
        "kind": "result",
        **{name: run.get(name) for name in names},
        "envelope": envelope(run),
        "changes": changes,
        "exit_code": exit_code,
    }


def envelope(run: Mapping[str, Any]) -> str:
    """The documented tool result."""
    prefix = f"[Subagent ID: {run.get('subagent_id')} - Use this ID to continue this conversation] "
    if run.get("outcome") == "completed":
        return prefix + (run.get("final_text") or "")
    error = run.get("error") or {}
    return f"{prefix}Error ({error.get('reason', 'lost')}): {error.get('message', 'the run has not finished')}"
