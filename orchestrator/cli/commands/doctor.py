"""``podmentor doctor``: what this machine lacks, as a table for people or as JSON for programs."""

import asyncio
import json
from collections.abc import Sequence
from typing import Literal, Protocol

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.ui.console import out
from orchestrator.config.paths import plan_paths

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


class FindingView(Protocol):
    """What is shown of a finding."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> Literal["ok", "warning", "failed"]: ...

    @property
    def detail(self) -> str: ...

    @property
    def fix(self) -> str | None: ...


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check what this machine needs, and how to mend it.

    Every need of rootless Podman is checked by itself, with a real container where only that can tell, and comes out as
    ok, warning (runs work, but less well) or failed, with the command that mends it.  Exit code 1 if any failed.
    """
    from orchestrator.bootstrap.service import run_doctor

    context = ctx.find_object(CliContext) or CliContext()
    # planned, not made: that they cannot be made is for a check to find
    findings = asyncio.run(run_doctor(context.config, plan_paths(context.config)))
    if as_json:
        click.echo(to_json(findings))
    else:
        render(out(), findings)
    if not all_good(findings):
        ctx.exit(FAILED)


def all_good(findings: Sequence[FindingView]) -> bool:
    """Whether runs work here: warnings do not count."""
    return all(finding.status != "failed" for finding in findings)


def to_json(findings: Sequence[FindingView]) -> str:
    """``{"ok": bool, "findings": [{name, status, detail, fix}]}``."""
    rows = [
        {"name": finding.name, "status": finding.status, "detail": finding.detail, "fix": finding.fix}
        for finding in findings
    ]
    return json.dumps({"ok": all_good(findings), "findings": rows}, indent=2, ensure_ascii=False)


def summary(findings: Sequence[FindingView]) -> str:
    """The closing line."""
    failed = sum(finding.status == "failed" for finding in findings)
    warnings = sum(finding.status == "warning" for finding in findings)
    counts = f"{len(findings)} checks: {failed} failed, {warnings} with a warning"
    return (
        f"{counts}. Runs will not work before the failed ones are mended." if failed else f"{counts}. Runs work here."
    )


def render(console: Console, findings: Sequence[FindingView]) -> None:
    """Print the table, then every command that mends something on a line of its own, unbroken, ready to be copied."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.status, STYLES[finding.status]), Text(finding.name), Text(finding.detail))
    console.print(table, soft_wrap=False)
    to_mend = [finding for finding in findings if finding.status != "ok" and finding.fix]
    if to_mend:
        console.print(Text("\nTo mend:"))
    for finding in to_mend:
        console.print(Text(f"  {finding.name}"))
        console.print(Text(f"    {finding.fix}"), soft_wrap=True)
    console.print(Text(f"\n{summary(findings)}", "green" if all_good(findings) else "red"))
