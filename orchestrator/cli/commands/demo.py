"""``podmentor demo``: a whole run, with the real CLI in a real container, against a provider that follows a script.

Everything is the demo's own: state, repo, key.  What the user has (runs, keys, repos) is neither used nor seen.
"""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from orchestrator.cli.client.follow import Progress, see_through, submit
from orchestrator.cli.client.service import ServiceLink
from orchestrator.cli.commands.run import outcome
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED, INTERRUPTED, exit_of_run
from orchestrator.cli.signals import InterruptedByUserError, Interrupts
from orchestrator.cli.ui.diff import print_diff
from orchestrator.cli.ui.output import Output, envelope
from orchestrator.cli.ui.safe import clean, to_json
from orchestrator.config.load import Loaded
from orchestrator.config.models import BackendConfig, Config, ExternalAgentConfig, Paths, StorageConfig
from orchestrator.errors import ConflictError, PodmentorError, StorageError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

BACKEND = "claude-code"
PROMPT = "The check of this repository fails. Find out why, fix it, and show that it passes."

_GIT_SECONDS = 30.0
_GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "podmentor demo",
    "GIT_AUTHOR_EMAIL": "demo@localhost",
    "GIT_COMMITTER_NAME": "podmentor demo",
    "GIT_COMMITTER_EMAIL": "demo@localhost",
}
_PACE = 0.02
"""Seconds between two pieces of an answer when somebody watches: about as fast as a model."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    ok: bool
    detail: str = ""


@dataclass
class Report:
    """What came of the demo."""

    checks: list[Check] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)
    changes: list[dict[str, Any]] | None = None
    diff: bytes = b""
    events: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 only when all checks hold."""
        if self.interrupted:
            return INTERRUPTED
        return 0 if self.ok else exit_of_run(self.run) or FAILED


@click.command()
@click.option("--json", "as_json", is_flag=True, help="A machine-readable report instead of the transcript.")
@click.option("--keep", is_flag=True, help="Keep the demo's repo and state, and say where they are.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, keep: bool) -> None:
    """See a whole run without a key or a network.

    The real Claude Code CLI works in a real container on a small sample repo; in place of the model a scripted provider
    on this machine answers.  Afterwards it is checked that the run completed, that the agent used a tool, that the
    sample repo itself stayed untouched, and that the (made-up) key never reached the container's output.  Exit 0 only
    if all of that holds.
    """
    context: CliContext = ctx.obj
    ctx.exit(asyncio.run(perform(context, as_json=as_json, keep=keep)))


async def perform(context: CliContext, *, as_json: bool, keep: bool) -> int:
    """The demo; its exit code."""
    config, place = await asyncio.to_thread(lambda: (context.config, context.paths.state_dir / "demo"))
    output = Output(quiet=as_json, advice=False)  # the subagent is removed at the end
    with Interrupts() as interrupts:
        try:
            report = await _with_provider(config, place, output, interrupts, keep=keep)
        except InterruptedByUserError:
            return INTERRUPTED
    if as_json:
        click.echo(to_json(as_data(report)))
    else:
        show(report, output)
        if keep:
            output.out.out(f"\nkept: {place}", highlight=False)
    return report.exit_code


async def _with_provider(config: Config, place: Path, output: Output, interrupts: Interrupts, *, keep: bool) -> Report:
    from orchestrator.bootstrap.service import SAMPLE_FILES, scripted_provider

    key = f"sk-ant-demo-{secrets.token_hex(16)}"
    pace = _PACE if output.plain and output.out.is_terminal else 0.0
    repo = place / f"repo-{secrets.token_hex(4)}"
    provider: AbstractAsyncContextManager[Any] = scripted_provider(scenario="demo", api_key=key, pace=pace)
    async with provider as scripted:
        own = demo_context(config, place / "state", base_url=scripted.base_url, key=key)
        link = ServiceLink(own, join=False)  # a service that runs already has other keys and repos
        ours = True
        try:
            await interrupts.guard(link.connect(), interrupts.first)
            await make_repo(repo, SAMPLE_FILES)
            report = await _run(link, repo, key, output, interrupts)
            if not keep and not report.interrupted:
                await _delete_subagent(link, str(report.run.get("subagent_id")))
        except ConflictError:
            ours = False  # another demo is at work there
            raise
        finally:
            await link.aclose()
            if ours and not keep:
                await asyncio.to_thread(_remove, place, own.paths)
    return report


def demo_context(config: Config, state_dir: Path, *, base_url: str, key: str) -> CliContext:
    """The user's machine settings (Podman, images) with the demo's own backend, state and nothing else."""
    backend = BackendConfig(api_key=SecretStr(key), base_url=base_url)
    agents = ExternalAgentConfig(default_sandbox_tier=1, backends={BACKEND: backend})
    own = Config(
        external_agent=agents,
        storage=StorageConfig(state_dir=state_dir),
        podman=config.podman,
        images=config.images,
    )
    context = CliContext()
    context.loaded = Loaded(config=own, source=None)
    return context


async def _run(link: ServiceLink, repo: Path, key: str, output: Output, interrupts: Interrupts) -> Report:
    before = await asyncio.to_thread(fingerprint, repo)
    output.remark(f"prompt: {PROMPT}")
    began = time.monotonic()
    body = {"backend": BACKEND, "query": PROMPT, "repo": str(repo), "tier": 1, "workspace": "overlay"}
    accepted = await interrupts.guard(submit(link, body), interrupts.second)
    progress = Progress(run_id=accepted["run_id"], subagent_id=accepted["subagent_id"])
    seen: list[str] = []

    def sink(event: Mapping[str, Any]) -> None:
        seen.append(json.dumps(event, ensure_ascii=False))
        output.event(event)

    await see_through(link, progress, sink, interrupts=interrupts, on_cancel=output.cancelling)
    run, changes = await outcome(link, progress.run_id)
    report = Report(
        run=run, changes=changes, events=progress.events, kinds=dict(progress.kinds), interrupted=progress.interrupted
    )
    report.seconds = time.monotonic() - began
    patch_error = ""
    try:
        report.diff = await link.client.patch(progress.subagent_id)
    except PodmentorError as error:
        patch_error = error.message
    after = await asyncio.to_thread(fingerprint, repo)
    everything = "\n".join([*seen, json.dumps(run, ensure_ascii=False), report.diff.decode(errors="replace")])
    failure = run.get("error") or {}
    report.checks = [
        Check("the run completed", run.get("outcome") == "completed", str(failure.get("message", ""))),
        Check("the agent used a tool", progress.kinds.get("tool_use", 0) > 0, f"{progress.kinds.get('tool_use', 0)}"),
        Check("its changes can be read as a diff", not patch_error, patch_error or f"{len(report.diff)} bytes"),
        Check("the repo itself is untouched", before == after, str(repo)),
        Check("the key stayed outside", bool(key) and key not in everything, f"{progress.events} events searched"),
    ]
    return report


async def _delete_subagent(link: ServiceLink, subagent_id: str) -> None:
    try:
        await link.client.delete_subagent(subagent_id)
    except PodmentorError as error:
        click.echo(f"· could not remove the demo's workspace: {clean(error.message)}", err=True)


def _remove(place: Path, paths: Paths) -> None:
    for directory in (place, paths.runtime_dir):
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            click.echo(f"· could not be removed altogether: {clean(str(directory))}", err=True)


def show(report: Report, output: Output) -> None:
    """What is printed below the transcript."""
    output.result(report.run, report.changes, report.exit_code)
    out = output.out
    out.out("\nthe answer, as a tool gives it back:", style="bold", highlight=False)
    out.out(clean(envelope(report.run)), highlight=False)
    if report.diff:
        out.out("\nthe diff:", style="bold", highlight=False)
        print_diff(report.diff)
    out.out("")
    for check in report.checks:
        detail = f"  ({clean(check.detail)})" if check.detail else ""
        out.out("✓ " if check.ok else "✗ ", style="green" if check.ok else "bold red", end="", highlight=False)
        out.out(check.name + detail, highlight=False)


def as_data(report: Report) -> dict[str, Any]:
    """The report of --json."""
    return {
        "ok": report.ok,
        "checks": [asdict(check) for check in report.checks],
        "run": report.run,
        "envelope": envelope(report.run),
        "changes": report.changes,
        "diff": report.diff.decode("utf-8", errors="replace"),
        "events": report.events,
        "kinds": report.kinds,
        "seconds": round(report.seconds, 3),
        "exit_code": report.exit_code,
    }


async def make_repo(where: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` to the new directory ``where`` and commit them; without git it is a plain directory."""
    await asyncio.to_thread(_write, where, files)
    if shutil.which("git") is None:
        return
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all"),
        ("commit", "--quiet", "--message=A script and its check"),
    ):
        await _git(where, *arguments)


def _write(where: Path, files: Mapping[str, str]) -> None:
    where.mkdir(parents=True, mode=0o755)
    for name, content in files.items():
        target = where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")


async def _git(where: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(where),
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "commit.gpgSign=false",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(where), **_GIT_ENV},
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _GIT_SECONDS)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise StorageError(f"git {arguments[0]} failed in {where}: {said.decode(errors='replace').strip()}")


def fingerprint(root: Path) -> str:
    """One hash over every path below ``root``: kind, mode, content or link target; .git included."""
    total = hashlib.sha256()
    for directory, folders, names in os.walk(root):
        folders.sort()
        for name in sorted([*names, *folders]):
            path = Path(directory) / name
            found = path.lstat()
            total.update(os.fsencode(path.relative_to(root)) + f"\0{found.st_mode:o}\0".encode())
            if stat.S_ISLNK(found.st_mode):
                total.update(os.fsencode(path.readlink()))
            elif stat.S_ISREG(found.st_mode):
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
