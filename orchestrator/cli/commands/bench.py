"""``podmentor bench``: what the backends' real images do, as numbered checks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.bench.results import BackendReport
from orchestrator.bench.runner import bench
from orchestrator.bench.seen import update
from orchestrator.bench.table import write_table
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.signals import run_guarded
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.contract.sandbox import IMAGE_REPOSITORY

if TYPE_CHECKING:
    from orchestrator.config.models import Config, Paths

JOBS = 6
"""Runs at once: a CLI keeps a core busy for a second or two, and waits for the rest of its time."""
MARKS = {
    "pass": ("✓ pass", "green"),
    "fail": ("✗ FAIL", "bold red"),
    "unsupported": ("- not supported", "yellow"),
    "skipped": ("· not tried", "dim"),
}
_DETAIL = 160
Say = Callable[[str], None]


@click.command()
@click.argument("backends", nargs=-1, metavar="[BACKEND]...")
@click.option("--image", metavar="TAG", help="Try the image with this tag instead of the current one.")
@click.option("--jobs", type=click.IntRange(1, 32), default=JOBS, show_default=True, help="Runs at once.")
@click.option(
    "--record",
    "record_to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep what the CLIs print, a recording for each run, in DIR/BACKEND.",
)
@click.option(
    "--write-capabilities",
    "write_to",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    is_flag=False,
    flag_value=".",
    metavar="[CHECKOUT]",
    help="Bring docs/backends.md and the served capability table of a checkout (default: this directory) up to date.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show each scene as it ends.")
@click.option("--json", "as_json", is_flag=True, help="A machine-readable report instead of the table.")
@click.pass_context
def command(
    ctx: click.Context,
    backends: tuple[str, ...],
    image: str | None,
    jobs: int,
    record_to: Path | None,
    write_to: Path | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Try the backends' real images on a provider that follows a script.

    Everything is the bench's own: service, state, repo, key; no key and no network is needed.  Without a name every
    installed backend is tried, one after the other.  Exit 0 only if no check failed.
    """
    context: CliContext = ctx.obj
    if image is not None and len(backends) != 1:
        raise click.UsageError("--image is the tag of one backend's image: name that backend")
    reports = run_guarded(try_all(context, backends, image=image, jobs=jobs, record_to=record_to, say=_say(verbose)))
    if write_to is not None:
        # Only what was tried as a whole is worth telling others.
        tried = [report for report in reports if not any(result.outcome == "skipped" for result in report.results)]
        write_table(write_to / "docs" / "backends.md", update(write_to / "orchestrator/bench/seen.json", tried))
    if as_json:
        click.echo(to_json({"ok": all(r.ok for r in reports), "backends": [r.to_dict() for r in reports]}))
    else:
        for report in reports:
            show(report, consoles.out())
    if not all(report.ok for report in reports):
        ctx.exit(FAILED)


async def try_all(
    context: CliContext, backends: tuple[str, ...], *, image: str | None, jobs: int, record_to: Path | None, say: Say
) -> list[BackendReport]:
    """One report for each backend."""
    from orchestrator.bootstrap.bench import benchable

    names = backends or tuple(benchable(context.config, context.paths))
    reports = []
    for name in dict.fromkeys(names):
        recordings = record_to / name if record_to is not None else None
        reports.append(
            await try_one(context.config, context.paths, name, image=image, jobs=jobs, record_to=recordings, say=say)
        )
    return reports


async def try_one(
    config: "Config", paths: "Paths", backend: str, *, image: str | None, jobs: int, record_to: Path | None, say: Say
) -> BackendReport:
    """Try one backend; ``image``: a tag, whole or what stands behind the colon."""
    from orchestrator.bootstrap.bench import bench_stage

    began = time.monotonic()
    tag = image.removeprefix(f"{IMAGE_REPOSITORY}/{backend}:") if image is not None else None
    place = paths.state_dir / "bench" / backend
    async with bench_stage(config, backend, place=place, image_tag=tag, jobs=jobs) as stage:
        report = await bench(stage, jobs=jobs, progress=lambda text: say(f"{backend}: {text}"), record_to=record_to)
    say(f"{backend}: done in {time.monotonic() - began:.1f} s")
    return report


def _say(verbose: bool) -> Say:
    """Progress on stderr: in a terminal the latest line, with --verbose all."""

    def say(text: str) -> None:
        click.echo(f"· {one_line(text, 160)}", err=True)

    def nothing(text: str) -> None:
        del text

    return say if verbose or consoles.err().is_terminal else nothing


def show(report: BackendReport, out: Console) -> None:
    """Title, one line for each check, times, and the verdict."""
    image = report.image_tag or "no image"
    out.out(f"\n{clean(report.backend)}  {clean(report.cli_version or '?')}  ({clean(image)})", style="bold")
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title, wrapped in (("#", False), ("RESULT", False), ("CHECK", False), ("DETAIL", True)):
        grid.add_column(title, no_wrap=not wrapped, overflow="fold")
    for result in report.results:
        mark, style = MARKS[result.outcome]
        detail = clean(result.detail) if result.outcome == "fail" else one_line(result.detail, _DETAIL)
        grid.add_row(Text(result.number), Text(mark, style=style), Text(result.title), Text(detail))
    out.print(grid, soft_wrap=False)
    if report.timings:
        out.out(
            "times: " + ", ".join(f"{name.replace('_', ' ')} {spent:g} s" for name, spent in report.timings.items())
        )
    counts = ", ".join(f"{count} {MARKS[name][0][2:].lower()}" for name, count in report.counts().items())
    out.out(f"{'green' if report.ok else 'NOT green'}: {counts}", style="green" if report.ok else "bold red")
