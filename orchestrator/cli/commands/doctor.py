"""``podmentor doctor``."""

import asyncio

import click

from orchestrator.bootstrap.service import run_doctor
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.ui.console import out
from orchestrator.cli.ui.doctor_view import all_good, render, to_json
from orchestrator.config.paths import plan_paths


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check what this machine needs, and how to mend it.

    Every need of rootless Podman is checked by itself, with a real container where only that can tell, and comes out as
    ok, warning (runs work, but less well) or failed, with the command that mends it.  Exit code 1 if any failed.
    """
    context = ctx.find_object(CliContext) or CliContext()
    # planned, not made: that they cannot be made is for a check to find
    findings = asyncio.run(run_doctor(context.config, plan_paths(context.config)))
    if as_json:
        click.echo(to_json(findings))
    else:
        render(out(), findings)
    if not all_good(findings):
        ctx.exit(FAILED)
