"""``podmentor images upgrade``: another version of a CLI is adopted only after it has proved itself."""

import asyncio
import shutil
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestrator.bench.output_diff import Change, compare, folded
from orchestrator.bench.results import BackendReport
from orchestrator.bench.seen import SEEN_NAME, update
from orchestrator.cli.commands.bench import JOBS, show, try_one
from orchestrator.cli.commands.images import show_progress, tool_output
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.options import local_actor
from orchestrator.cli.signals import run_guarded
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.contract.audit import Audit, Fact
from orchestrator.contract.images import Candidate, ImageUpgrader

if TYPE_CHECKING:
    from orchestrator.config.models import Config, Paths

Verdict = Literal["up_to_date", "promoted", "rolled_back"]


@dataclass
class Upgrade:
    """What came of it."""

    backend: str
    verdict: Verdict
    from_version: str | None = None
    version: str | None = None
    report: BackendReport | None = None
    changes: list[Change] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "backend": self.backend,
            "verdict": self.verdict,
            "from_version": self.from_version,
            "version": self.version,
            "bench": self.report.to_dict() if self.report else None,
            "changes": [change.to_dict() for change in self.changes],
        }


@click.command()
@click.argument("backend")
@click.option("--to", metavar="VERSION", help="The version to try.  Default: the newest on the npm registry.")
@click.option("--yes", is_flag=True, help="Adopt it without asking when no check failed.")
@click.option("-v", "--verbose", is_flag=True, help="Show every line that the tools print, and each scene.")
@click.option("--json", "as_json", is_flag=True, help="A machine-readable report; progress goes to stderr.")
@click.pass_context
def command(ctx: click.Context, backend: str, to: str | None, yes: bool, verbose: bool, as_json: bool) -> None:
    """Try another version of a backend's CLI, and adopt it when it has proved itself.

    An image with that version is built beside the current one and goes through the bench; what its CLI prints is
    recorded and compared with what the version before printed.  When no check failed and you agree, new runs start
    from it, and the version is kept for later builds; else it is removed again.  Runs in progress keep their image.

    Exit 0: adopted, or nothing to do.  Exit 1: not adopted.
    """
    context: CliContext = ctx.obj
    if not yes and not _somebody_there():
        raise click.UsageError("there is nobody to ask here: give --yes to adopt the version when no check failed")
    from orchestrator.bootstrap.audit import audit_log
    from orchestrator.bootstrap.bench import image_builder

    builder = image_builder(context.config, context.paths)
    with tool_output():
        log = audit_log(context.paths)
        work = Work(context.config, context.paths, builder, log, verbose=verbose, quiet=as_json, yes=yes)
        upgrade = run_guarded(work.upgrade(backend, to))
    if as_json:
        click.echo(to_json(upgrade.to_dict()))
    else:
        click.echo(_last_line(upgrade))
    if upgrade.verdict == "rolled_back":
        ctx.exit(FAILED)


class Work:
    """One upgrade."""

    def __init__(
        self,
        config: "Config",
        paths: "Paths",
        builder: ImageUpgrader,
        audit: Audit,
        *,
        verbose: bool,
        quiet: bool,
        yes: bool,
    ) -> None:
        self._config = config
        self._paths = paths
        self._builder = builder
        self._audit = audit
        self._verbose = verbose
        self._quiet = quiet
        self._yes = yes

    async def upgrade(self, backend: str, to: str | None) -> Upgrade:
        """From the registry to the verdict.  Whatever ends it early, a candidate that was not adopted is removed."""
        with show_progress(verbose=self._verbose, to_stderr=True) as progress:
            candidate = await self._builder.candidate(backend, to=to, progress=progress)
        if candidate is None:
            return Upgrade(backend=backend, verdict="up_to_date", version=to)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._discard, candidate)
            upgrade = await self._try(candidate)
            if upgrade.report is not None and upgrade.report.ok and await self._agreed(upgrade):
                await self._audit.record("image.adopted", **self._facts(candidate))
                undo.pop_all()
                with show_progress(verbose=self._verbose, to_stderr=True) as progress:
                    await self._builder.promote(candidate, progress)
                await asyncio.to_thread(update, self._paths.state_dir / SEEN_NAME, [upgrade.report])
                upgrade.verdict = "promoted"
            else:
                await self._audit.note("image.refused", **self._facts(candidate))
                await asyncio.to_thread(_removed, self._recordings(candidate, candidate.version))
        return upgrade

    @staticmethod
    def _facts(candidate: Candidate) -> dict[str, Fact]:
        about: dict[str, Fact] = {"actor": local_actor(), "backend": candidate.backend}
        return {**about, "version": candidate.version, "from_version": candidate.from_version}

    async def _discard(self, candidate: Candidate) -> None:
        with show_progress(verbose=self._verbose, to_stderr=True) as progress:
            await self._builder.discard(candidate, progress)

    async def _try(self, candidate: Candidate) -> Upgrade:
        """Bench and recordings of the candidate, and those of the current version if there are none yet."""
        before = self._recordings(candidate, candidate.from_version)
        if not before.is_dir() and await self._has_current(candidate.backend):
            self._say(f"{candidate.backend}: recording the current version, {candidate.from_version}")
            await self._bench(candidate.backend, None, before)
        after = self._recordings(candidate, candidate.version)
        await asyncio.to_thread(_removed, after)
        self._say(f"{candidate.backend}: trying {candidate.version}")
        report = await self._bench(candidate.backend, candidate.ref.tag, after)
        changes = await asyncio.to_thread(compare, before, after) if before.is_dir() else []
        upgrade = Upgrade(
            backend=candidate.backend,
            verdict="rolled_back",
            from_version=candidate.from_version,
            version=candidate.version,
            report=report,
            changes=changes,
        )
        if not self._quiet:
            show(report, consoles.out())
            show_changes(upgrade, compared=before.is_dir())
        return upgrade

    async def _bench(self, backend: str, image: str | None, record_to: Path) -> BackendReport:
        part = record_to.with_name(f".{record_to.name}.part")  # whole or not at all
        await asyncio.to_thread(_removed, part)
        report = await try_one(
            self._config, self._paths, backend, image=image, jobs=JOBS, record_to=part, say=self._say_scene
        )
        if await asyncio.to_thread(part.is_dir):
            await asyncio.to_thread(part.replace, record_to)
        return report

    async def _has_current(self, backend: str) -> bool:
        return any(image.current and image.ref.backend == backend for image in await self._builder.list_images())

    def _recordings(self, candidate: Candidate, version: str) -> Path:
        return self._paths.state_dir / "recordings" / candidate.backend / version

    async def _agreed(self, upgrade: Upgrade) -> bool:
        if self._yes:
            return True
        question = f"Let new runs of {upgrade.backend} start from {upgrade.version} (now {upgrade.from_version})?"
        return await asyncio.to_thread(click.confirm, question, default=False, err=True)

    def _say(self, text: str) -> None:
        click.echo(f"· {one_line(text, 160)}", err=True)

    def _say_scene(self, text: str) -> None:
        if self._verbose:
            self._say(text)


def _somebody_there() -> bool:
    return sys.stdin.isatty()


def _removed(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def show_changes(upgrade: Upgrade, *, compared: bool) -> None:
    """What is different from the version before."""
    out = consoles.out()
    versions = f"{upgrade.from_version} -> {upgrade.version}"
    if not compared:
        out.out(f"\nthere is nothing to compare {upgrade.version} with: no image of {upgrade.from_version} is there")
        return
    if not upgrade.changes:
        out.out(f"\nevents and output, {versions}: the same shape in every case")
        return
    out.out(f"\nevents and output, {versions}:", style="bold")
    rows = [(cases, where, clean(what)) for cases, where, what in folded(upgrade.changes)]
    consoles.table(out, ("CASES", "WHERE", "CHANGE"), rows)


def _last_line(upgrade: Upgrade) -> str:
    match upgrade.verdict:
        case "up_to_date":
            return f"{upgrade.backend} has this version already; nothing to do"
        case "promoted":
            return (
                f"adopted: new runs of {upgrade.backend} start from {upgrade.version} (before: {upgrade.from_version})"
            )
        case "rolled_back":
            return f"not adopted: {upgrade.backend} stays at {upgrade.from_version}"
