"""``podmentor gc``: remove what is old."""

from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.quantities import size
from orchestrator.cli.ui.safe import clean, one_line, to_json


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Default: storage.retention_days (30)."
)
@click.option("--unapplied", is_flag=True, help="Also subagents with changes that nobody took or dropped.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
@JSON_OPTION
@click.pass_obj
def command(context: CliContext, older_than: float | None, unapplied: bool, dry_run: bool, as_json: bool) -> None:
    """Remove subagents and raw logs that have not been used for a while, and say what that frees.

    What is in use stays, and so do changes that nobody has taken or dropped.
    """
    body: dict[str, Any] = {"unapplied": unapplied, "dry_run": dry_run}
    if older_than is not None:
        body["older_than_days"] = older_than

    async def send(link: ServiceLink) -> dict[str, Any]:
        return await link.client.gc(body)

    done = with_service(context, send)
    if as_json:
        click.echo(to_json(done))
        return
    out = consoles.out()
    for item in done["removed"]:
        out.out(f"  {clean(item['kind']):<13}{clean(item['id'])}  {size(item['bytes'])}", highlight=False)
    for item in done["kept"]:
        out.out(
            f"  kept         {clean(item['id'])}  {size(item['bytes'])}  ({one_line(str(item['reason']))})",
            style="yellow",
            highlight=False,
        )
    verb = "would be freed" if done["dry_run"] else "freed"
    out.out(f"{size(done['bytes'])} {verb}", highlight=False)
