"""A run as it is shown from its first event to its result: as a transcript, as JSON lines, or only its final text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.exits import hint_of_run
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.render import Transcript
from orchestrator.cli.ui.safe import clean, to_json
from orchestrator.cli.ui.summary import print_summary


@dataclass
class Output:
    """Where and how a run is shown."""

    as_json: bool = False
    quiet: bool = False
    advice: bool = True
    """Say how to go on with the conversation."""

    def __post_init__(self) -> None:
        self.out = consoles.out()
        self.err = consoles.err()
        self.transcript = Transcript(self.out)

    @property
    def plain(self) -> bool:
        """Whether people read along."""
        return not self.as_json and not self.quiet

    def remark(self, text: str) -> None:
        """Something beside the run itself."""
        if self.plain:
            self.err.out(f"· {clean(text)}", style="dim", highlight=False)

    def event(self, event: Mapping[str, Any]) -> None:
        """The next event of the run."""
        if self.as_json:
            click.echo(to_json(event))
        elif self.plain:
            self.transcript.feed(event)

    def cancelling(self) -> None:
        """Ctrl-C was seen."""
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
