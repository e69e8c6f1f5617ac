"""``podmentor changes run`` and ``rollback``: what each run changed, and the way back."""

from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, find_run, find_subagent, with_service
from orchestrator.cli.commands.runs import JSON_OPTION
from orchestrator.cli.context import CliContext
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import one_line, to_json

_LETTERS = {"changed": ("M", "yellow"), "deleted": ("D", "red"), "restored": ("=", "dim")}


@click.command("run")
@click.argument("run")
@JSON_OPTION
@click.pass_obj
def run_command(context: CliContext, run: str, as_json: bool) -> None:
    """What one run changed (M), deleted (D), or made again what the repo has (=)."""

    async def body(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.run_changes(await find_run(link.client, run))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json({"changes": found}))
        return
    out = consoles.out()
    if not found:
        out.out("no file changed", style="dim", highlight=False)
    for one in found:
        letter, style = _LETTERS.get(str(one.get("change")), ("?", "dim"))
        out.out(f"  {letter} ", end="", style=style, highlight=False)
        out.out(one_line(str(one.get("path")), 200), highlight=False)


@click.command("rollback")
@click.argument("subagent")
@click.argument("run")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def rollback_command(context: CliContext, subagent: str, run: str, yes: bool) -> None:
    """Take the workspace back to the end of RUN, with all that was in it then.

    The repo is not touched, and the agent remembers what it did.
    """

    async def find(link: ServiceLink) -> tuple[str, str]:
        return await find_subagent(link.client, subagent), await find_run(link.client, run)

    found, target = with_service(context, find)
    if not yes:
        click.confirm(f"Take the workspace of {found} back to the end of run {target}?", abort=True, err=True)

    async def send(link: ServiceLink) -> None:
        await link.client.rollback(found, target)

    with_service(context, send)
    click.echo(f"the workspace is as it was at the end of run {target}")
