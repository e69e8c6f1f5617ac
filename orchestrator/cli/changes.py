"""``podmentor changes``: what an agent changed in its overlay."""

import sys
from typing import Any

import click

from orchestrator.cli import console as consoles
from orchestrator.cli.context import CliContext
from orchestrator.cli.runs import JSON_OPTION, write_bytes
from orchestrator.cli.safe import clean, to_json
from orchestrator.cli.service import ServiceLink, find_subagent, with_service
from orchestrator.cli.summary import print_changes


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Look at what an agent changed.

    SUBAGENT is a subagent's id, or the beginning of it.  The repo itself is as it was.
    """


@group.command("list")
@click.argument("subagent")
@JSON_OPTION
@click.pass_obj
def list_command(context: CliContext, subagent: str, as_json: bool) -> None:
    """The files that were added, modified or deleted."""

    async def body(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.changes(await find_subagent(link.client, subagent))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json({"changes": found}))
    else:
        print_changes(consoles.out(), found)


@group.command("diff")
@click.argument("subagent")
@click.pass_obj
def diff_command(context: CliContext, subagent: str) -> None:
    """The changes as a unified diff.

    Into a file or a pipe it goes byte by byte, so that git apply takes it; on a terminal it is coloured, and cleaned
    of control characters.
    """

    async def body(link: ServiceLink) -> bytes:
        return await link.client.patch(await find_subagent(link.client, subagent))

    patch = with_service(context, body)
    if sys.stdout.isatty():
        print_diff(patch)
    else:
        write_bytes(patch)


def print_diff(patch: bytes) -> None:
    """A diff for people."""
    out = consoles.out()
    for line in patch.decode("utf-8", errors="replace").splitlines():
        out.out(clean(line), style=_style(line), highlight=False)


def _style(line: str) -> str | None:
    if line.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
