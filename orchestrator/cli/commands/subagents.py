"""``podmentor subagents``: the agents one can go on talking to, and how to be rid of one."""

from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, find_subagent, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean, to_json


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List, show and delete subagents: conversations, each with its workspace.

    SUBAGENT is a subagent's id, or the beginning of it.
    """


@group.command("list")
@JSON_OPTION
@click.pass_obj
def list_command(context: CliContext, as_json: bool) -> None:
    """All subagents, the one used last first."""

    async def body(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.subagents()

    found = sorted(with_service(context, body), key=lambda one: str(one["last_used_at"]), reverse=True)
    if as_json:
        click.echo(to_json({"subagents": found}))
        return
    out = consoles.out()
    short = consoles.short_ids(out, [one["subagent_id"] for one in found])
    rows = [
        (
            short[one["subagent_id"]],
            one["backend"],
            "busy" if one["busy"] else "idle",
            str(len(one["run_ids"])),
            one["last_used_at"][:19].replace("T", " "),
            one.get("repo") or "(empty workspace)",
            one["title"],
        )
        for one in found
    ]
    titles = ("subagent", "backend", "state", "runs", "last used (UTC)", "repo", "title")
    consoles.table(out, titles, rows, spare=("runs", "state", "backend", "repo"))


@group.command("show")
@click.argument("subagent")
@JSON_OPTION
@click.pass_obj
def show_command(context: CliContext, subagent: str, as_json: bool) -> None:
    """One subagent."""

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.subagent(await find_subagent(link.client, subagent))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
        return
    out = consoles.out()
    names = (
        "subagent_id",
        "title",
        "backend",
        "backend_session_id",
        "repo",
        "workspace",
        "created_at",
        "last_used_at",
        "busy",
    )
    for name in names:
        if found.get(name) is not None:
            out.out(f"{name.replace('_', ' '):<20} {clean(str(found[name]))}", highlight=False)
    out.out("runs", highlight=False)
    for run_id in found["run_ids"]:
        out.out(f"  {clean(run_id)}", highlight=False)


@group.command("delete")
@click.argument("subagent")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete_command(context: CliContext, subagent: str, yes: bool) -> None:
    """Delete a subagent with its runs, its home and its changes.

    What it changed in an overlay and nobody took over is lost.
    """

    async def find(link: ServiceLink) -> str:
        return await find_subagent(link.client, subagent)

    found = with_service(context, find)
    if not yes:
        click.confirm(f"Delete {found} with all its runs and changes?", abort=True)

    async def delete(link: ServiceLink) -> None:
        await link.client.delete_subagent(found)

    with_service(context, delete)
    click.echo(f"deleted {found}")
