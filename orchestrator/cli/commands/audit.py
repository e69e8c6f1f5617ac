"""``podmentor audit``: read the audit log, as its owner; needs no service."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import NOT_FOUND, USAGE, CliError
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.contract.audit import ENVELOPE, AuditFilter, Damaged

if TYPE_CHECKING:
    from orchestrator.contract.audit import AuditLines

TITLES = ("TIME", "EVENT", "ACTOR", "USER", "RUN", "BACKEND", "FACTS")
_RUN_CHARS = 8
_WIDTHS = (24, 18, 16, 12, _RUN_CHARS, 11)
"""In what is followed, where no table can know how wide its columns will be."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Read the audit log: who did what, with which credential, and what was reached."""


@group.command("tail")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option("-n", "count", type=click.IntRange(0), default=20, show_default=True, help="How many lines.")
@click.option("--event", metavar="PATTERN", help="Only these events; * stands for anything: 'egress.*'.")
@click.option("--user", metavar="USER", help="Only what was done by or for this user (or token).")
@JSON_OPTION
@click.pass_obj
def tail(context: CliContext, follow: bool, count: int, event: str | None, user: str | None, as_json: bool) -> None:
    """The last lines, oldest first."""
    lines, wanted = _log(context), AuditFilter(event=event, user=user)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_tail(lines, wanted, count, follow=follow, as_json=as_json))


@group.command("show")
@click.option("--run", "run_id", metavar="RUN", required=True, help="The run's id, or its beginning.")
@JSON_OPTION
@click.pass_obj
def show(context: CliContext, run_id: str, as_json: bool) -> None:
    """Every line about one run."""
    if not run_id:
        raise click.UsageError("--run needs the id of a run")
    found = asyncio.run(_log(context).last(AuditFilter(run_id=run_id), None))
    runs = {line["run_id"] for line in found if not isinstance(line, Damaged)}
    if len(runs) != 1:
        _tell_damaged(found)
        shown = one_line(run_id, 64)
        if runs:
            raise CliError(f"{len(runs)} runs begin with {shown}", code="invalid_request", exit_code=USAGE)
        raise CliError(f"the audit log has nothing about a run {shown}", code="not_found", exit_code=NOT_FOUND)
    _print(found, as_json=as_json)


async def _tail(lines: "AuditLines", wanted: AuditFilter, count: int, *, follow: bool, as_json: bool) -> None:
    found = await lines.last(wanted, count)
    if not follow:
        _print(found, as_json=as_json)
        return
    if not as_json:
        _print_row(TITLES)
    for line in found:
        _print_one(line, as_json=as_json)
    async for line in lines.follow(wanted):
        _print_one(line, as_json=as_json)


def _log(context: CliContext) -> "AuditLines":
    from orchestrator.bootstrap.audit import audit_lines

    if context.url is not None:
        raise click.UsageError("the audit log is read on the machine where podmentor runs: leave --url out")
    return audit_lines(context.paths)


def _print(found: Iterable[Mapping[str, Any] | Damaged], *, as_json: bool) -> None:
    lines = list(found)
    _tell_damaged(lines)
    good = [line for line in lines if not isinstance(line, Damaged)]
    if as_json:
        for line in good:
            click.echo(to_json(line))
    else:
        rows = [row_of(line) for line in good]
        consoles.table(consoles.out(), TITLES, rows, spare=("BACKEND", "USER", "ACTOR"))


def _print_one(line: Mapping[str, Any] | Damaged, *, as_json: bool) -> None:
    if isinstance(line, Damaged):
        _tell_damaged([line])
    elif as_json:
        click.echo(to_json(line))
    else:
        _print_row(row_of(line))


def _print_row(row: tuple[str, ...]) -> None:
    cells = [cell.ljust(width) for cell, width in zip(row, _WIDTHS, strict=False)]
    consoles.out().out("  ".join([*cells, row[-1]]).rstrip())


def _tell_damaged(lines: Iterable[Mapping[str, Any] | Damaged]) -> None:
    for line in lines:
        if isinstance(line, Damaged):
            click.echo(f"{line.file}, line {line.number}: cannot be read ({line.size} bytes, cut?); skipped", err=True)


def row_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """The envelope, and behind it the facts as ``name=value``."""
    first = [one_line(str(line.get(name, "")), 200) for name in ENVELOPE]
    ts, event, actor, user, run, backend = first
    facts = " ".join(
        f"{one_line(str(name))}={_value(value)}"
        for name, value in line.items()
        if name not in ENVELOPE and value is not None
    )
    return ts, event, actor, user, run[:_RUN_CHARS], backend, facts


def _value(value: Any) -> str:
    text = one_line(value, 300) if isinstance(value, str) else clean(to_json(value))
    return f'"{text}"' if " " in text else text
