"""``podmentor images``: build, list and prune the backends' images."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from orchestrator.cli.lazy import Lazy, LazyGroup
from orchestrator.cli.signals import run_guarded
from orchestrator.cli.ui import console as consoles
from orchestrator.contract.images import BuildProgress, ImageUpgrader, ListedImage, ProgressSink
from orchestrator.contract.sandbox import ImageRef
from orchestrator.errors import ImageBuildError

if TYPE_CHECKING:
    from orchestrator.cli.context import CliContext

_MARKS = {"finished": "done", "skipped": "nothing to do", "warning": "warning"}


@click.group(
    "images",
    cls=LazyGroup,
    table={
        "upgrade": Lazy(
            "orchestrator.cli.commands.upgrade:command", "Try another version of an agent's CLI, and adopt it."
        )
    },
)
def group() -> None:
    """Build, upgrade, list and prune the agents' container images."""


@group.command("build")
@click.argument("backends", nargs=-1, metavar="[BACKEND]...")
@click.option("--all", "every", is_flag=True, help="Every backend that has a recipe; so it is when none is named.")
@click.option(
    "--base",
    metavar="auto|debian|REF",
    help="What to build on: Debian made here by mmdebstrap (debian; auto is the same), or a registry's "
    "Debian-based image, such as debian:trixie-slim.  Default: as configured.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="PEM file of certificates to trust in addition, while building and in the images.  Default: as configured, "
    "else what this machine's administrator has added to its own.",
)
@click.option("--no-cache", is_flag=True, help="Make everything anew, to get the latest Debian updates.")
@click.option("-v", "--verbose", is_flag=True, help="Show every line that the build tools print.")
@click.option("--json", "as_json", is_flag=True, help="Print the images as JSON; progress goes to stderr.")
@click.pass_obj
def build(
    context: "CliContext",
    backends: tuple[str, ...],
    every: bool,
    base: str | None,
    ca_bundle: Path | None,
    no_cache: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Build the images that are not up to date.

    An image whose recipe has not changed is left as it is.  Runs in progress keep the image they were started from.
    """
    if every and backends:
        raise click.UsageError("name backends or give --all, not both")
    builder = _builder(context)
    with show_progress(verbose=verbose, to_stderr=as_json) as progress, tool_output():
        built = run_guarded(
            builder.build(backends, base=base, ca_bundle=ca_bundle, no_cache=no_cache, progress=progress)
        )
    if as_json:
        _print_json([dataclasses.asdict(ref) for ref in built])
        return
    for ref in built:
        click.echo(f"{ref.tag}  {_megabytes(ref.size_bytes)}")


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(context: "CliContext", as_json: bool) -> None:
    """List the images, and whether they are up to date."""
    images = run_guarded(_builder(context).list_images())
    if as_json:
        _print_json([_listed(image) for image in images])
        return
    if not images:
        click.echo("No images yet: podmentor images build --all", err=True)
        return
    rows = [
        (
            image.ref.backend,
            image.ref.cli_version,
            _megabytes(image.ref.size_bytes),
            image.ref.created[:16].replace("T", " "),
            _state(image),
            _short(image.ref),
        )
        for image in images
    ]
    titles = ("BACKEND", "CLI", "SIZE", "CREATED", "STATE", "IMAGE")
    consoles.table(consoles.out(), titles, rows, spare=("CREATED", "SIZE"))


@group.command("prune")
@click.option("-v", "--verbose", is_flag=True, help="Show every line that the tools print.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; progress goes to stderr.")
@click.pass_obj
def prune(context: "CliContext", verbose: bool, as_json: bool) -> None:
    """Remove images that are neither current nor in use, and what interrupted builds left."""
    builder = _builder(context)
    with show_progress(verbose=verbose, to_stderr=as_json) as progress, tool_output():
        removed = run_guarded(builder.prune(progress))
    if as_json:
        _print_json([dataclasses.asdict(image) for image in removed])
    else:
        click.echo(f"{len(removed)} removed" if removed else "Nothing to remove.")


def _builder(context: "CliContext") -> ImageUpgrader:
    from orchestrator.bootstrap.service import image_builder

    return image_builder(context.config, context.paths)


@contextmanager
def tool_output() -> Iterator[None]:
    """Before the error itself: what the tool that failed printed last."""
    try:
        yield
    except ImageBuildError as error:
        for line in error.details.get("lines", ()):
            click.echo(f"  | {line}", err=True)
        raise


@contextmanager
def show_progress(*, verbose: bool, to_stderr: bool) -> Iterator[ProgressSink]:
    """What a build has to say: lines, and in a terminal also the open step."""
    console = consoles.err() if to_stderr else consoles.out()
    if not console.is_terminal:
        yield _Lines(console, verbose=verbose)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    detail = TextColumn("{task.fields[detail]}", markup=False, style="dim")
    with Progress(*columns, detail, console=console, transient=True) as bar:
        yield _Live(bar, verbose=verbose)


class _Lines:
    """Plain lines, for logs: one when a step begins and one when it has ended."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose

    def __call__(self, event: BuildProgress) -> None:
        if event.kind == "detail":
            if self._verbose:
                self._console.print(f"      {event.text}")
            return
        self._console.print(describe(event))


class _Live(_Lines):
    """The same lines, and under them the open step with its time and the tool's latest line."""

    def __init__(self, bar: Progress, *, verbose: bool) -> None:
        super().__init__(bar.console, verbose=verbose)
        self._bar = bar
        self._task: TaskID | None = None

    def __call__(self, event: BuildProgress) -> None:
        if event.kind == "started":
            self._close()
            self._task = self._bar.add_task(describe(event), total=None, detail="")
            return
        if event.kind == "detail" and self._task is not None:
            self._bar.update(self._task, detail=event.text[:60])
        if event.kind in {"finished", "skipped", "warning"}:
            self._close()
        super().__call__(event)

    def _close(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def describe(event: BuildProgress) -> str:
    """One event as a line."""
    number = f"[{event.number}/{event.total}] " if event.number else ""
    line = f"{number}{event.step}: {event.text}"
    if event.kind == "started":
        return f"{line} ..."
    took = f", {event.elapsed_seconds:.1f} s" if event.kind == "finished" else ""
    return f"{line} ({_MARKS.get(event.kind, event.kind)}{took})"


def _state(image: ListedImage) -> str:
    if image.current:
        chosen = ", chosen by an upgrade" if image.upgraded and image.up_to_date else ""
        return f"current{chosen}" if image.up_to_date else "current, out of date"
    if image.candidate:
        return "candidate of an upgrade"
    return "built, not current" if image.up_to_date else "old"


def _short(ref: ImageRef) -> str:
    return ref.tag if ":" in ref.tag else ref.tag[:12]


def _listed(image: ListedImage) -> dict[str, Any]:
    return {
        **dataclasses.asdict(image.ref),
        "current": image.current,
        "up_to_date": image.up_to_date,
        "candidate": image.candidate,
        "upgraded": image.upgraded,
    }


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
