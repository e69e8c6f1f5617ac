"""``podmentor run``: a prompt to an agent, its work as it happens, and what came of it."""

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import repo as repos
from orchestrator.cli.client.follow import Progress, cancel, see_through, submit
from orchestrator.cli.client.service import ServiceLink, find_subagent
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import HELP, INTERRUPTED, OK, CliError, exit_of_code, exit_of_run
from orchestrator.cli.signals import InterruptedByUserError, Interrupts
from orchestrator.cli.ui.output import Output
from orchestrator.cli.ui.safe import one_line, to_json
from orchestrator.config.load import KEY_VARIABLES
from orchestrator.errors import NotFoundError, PodmentorError, UnknownBackendError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def size(value: str) -> int:
    """Bytes: 512m, 2g, 1.5GiB, 1048576."""
    match = _SIZE.match(value)
    if match is None or (number := int(float(match[1]) * _UNITS[match[2].lower()])) <= 0:
        raise click.BadParameter(f"{value!r} is no size; write it like 512m or 2g")
    return number


class RunCommand(click.Command):
    """A command whose last argument is free text."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A prompt that looks like an option gets explained."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = 'A prompt that begins with - goes behind --: podmentor run BACKEND -- "- like this"'
            raise click.UsageError(f"{error.format_message()}  {advice}", ctx) from None


@click.command(cls=RunCommand, epilog=HELP)
@click.argument("backend")
@click.argument("prompt", required=False)
@click.option(
    "--repo", metavar="PATH|NAME", help="Repo to work on.  Default: the git repo around the current directory."
)
@click.option("--no-repo", is_flag=True, help="Begin with an empty workspace.")
@click.option(
    "--workspace",
    type=click.Choice(["overlay", "copy", "direct", "readonly"]),
    help="overlay: the repo stays as it is; direct: the agent writes into it; readonly.  Default: overlay.",
)
@click.option("--model", metavar="NAME", help="The model, by the provider's name for it.  Default: as configured.")
@click.option("--tier", type=click.Choice(["0", "1"]), help="0: network; 1: none but the way to the model provider.")
@click.option(
    "--egress",
    multiple=True,
    metavar="HOST",
    help="In tier 1: reach only this host of the allow-list; may be given several times.",
)
@click.option("--no-egress", is_flag=True, help="In tier 1: reach none of the allow-list's hosts.")
@click.option("--subagent", metavar="ID", help="Go on with this subagent: its id, or the beginning of it.")
@click.option(
    "--continue",
    "latest",
    is_flag=True,
    help="Go on with the subagent of this repo and BACKEND that was used last.",
)
@click.option("--detach", "-d", is_flag=True, help="Print the run's id and leave it to the service that runs.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Time limit, in seconds.")
@click.option(
    "--idle", type=click.FloatRange(min=0, min_open=True), metavar="S", help="End after so many seconds without output."
)
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Processors: 0.5, 2.")
@click.option("--memory", type=size, metavar="SIZE", help="Memory limit of the run: 512m, 2g.")
@click.option("--disk", type=size, metavar="SIZE", help="Disk limit of workspace and home together: 500m, 8g.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines, and the result as the last line.")
@click.option("--quiet", "-q", is_flag=True, help="Only the final text.")
@click.pass_context
def command(ctx: click.Context, /, backend: str, prompt: str | None, **options: Any) -> None:
    """Give PROMPT to BACKEND and watch it work.

    PROMPT may be - (or left out) to read it from standard input.  Ctrl-C cancels the run and waits for its end; a
    second Ctrl-C leaves at once.  Limits can be made narrower than configured; wider ones take an admin.

    \b
    Examples:
        podmentor run claude-code "why does test_parser fail?"
        git diff | podmentor run claude-code --tier 1 -
        podmentor run claude-code --continue "now fix it"
        podmentor run codex --tier 1 --egress pypi.org --egress files.pythonhosted.org "update the lock file"
    """
    if options["repo"] is not None and options["no_repo"]:
        raise click.UsageError("--repo and --no-repo exclude each other")
    if options["egress"] and options["no_egress"]:
        raise click.UsageError("--egress and --no-egress exclude each other")
    if options["as_json"] and options["quiet"]:
        raise click.UsageError("--json and --quiet exclude each other")
    if options["latest"] and options["subagent"] is not None:
        raise click.UsageError("--continue and --subagent exclude each other")
    context: CliContext = ctx.obj
    query = read_prompt(prompt)
    choice = repos.choose(
        options["repo"],
        none=options["no_repo"],
        continued=options["subagent"] is not None,
        remote=context.url is not None,
        cwd=Path.cwd(),
        closed=None if (closed := os.environ.get("PODMENTOR_CLOSED_REPO")) is None else Path(closed),
        names={} if context.url is not None else context.config.repos,
        state_dir=None if context.url is not None else context.paths.state_dir,
    )
    output = Output(as_json=options["as_json"], quiet=options["quiet"])
    if choice.remark:
        output.remark(choice.remark)
    body = request_body(backend, query, choice.value, options)
    run = Run(context, body, output, latest=options["latest"], detach=options["detach"])
    try:
        ctx.exit(asyncio.run(run.perform()))
    except UnknownBackendError as error:
        if (advice := key_advice(context, backend)) is None:
            raise
        raise CliError(error.message, code=error.code, exit_code=exit_of_code(error.code), hint=advice) from None


def key_advice(context: CliContext, backend: str) -> str | None:
    """Which key enables ``backend``, where no configuration file says what is enabled; None: that is not what lacks."""
    if context.url is not None or context.loaded.source is not None:
        return None
    variable = KEY_VARIABLES.get(backend)
    return None if variable is None else f"set ${variable}, for the service too if one runs: that enables {backend}"


def request_body(backend: str, query: str, repo: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/runs, with nothing in it that was not asked for."""
    limits = {
        "wall_clock_seconds": options["timeout"],
        "idle_seconds": options["idle"],
        "cpus": options["cpus"],
        "memory_max_bytes": options["memory"],
        "disk_max_bytes": options["disk"],
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    body = {
        "backend": backend,
        "query": query,
        "model": options["model"],
        "subagent_id": options["subagent"],
        "repo": repo,
        "tier": None if options["tier"] is None else int(options["tier"]),
        "workspace": options["workspace"],
        "egress": list(options["egress"]) or ([] if options["no_egress"] else None),
        "limits": limits or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def read_prompt(prompt: str | None) -> str:
    """The argument, or standard input.  Raises UsageError when there is nothing."""
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no prompt: give it as an argument, or - to type it (end with Ctrl-D)")
    if prompt is None or prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    text = prompt.encode("utf-8", errors="replace").decode()  # an argument may hold bytes that are no text
    if not text.strip():
        raise click.UsageError("the prompt is empty")
    return text


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command."""

    context: CliContext
    body: Mapping[str, Any]
    output: Output
    latest: bool = False
    """Go on with the subagent that was used last."""
    detach: bool = False
    """Do not watch."""

    async def perform(self) -> int:
        """The whole run; its exit code."""
        with Interrupts() as interrupts:
            link = ServiceLink(self.context, lasting=self.detach)
            try:
                await interrupts.guard(link.connect(), interrupts.first)
                return await self._on_service(link, interrupts)
            except InterruptedByUserError:
                return INTERRUPTED
            finally:
                await link.aclose()

    async def _on_service(self, link: ServiceLink, interrupts: Interrupts) -> int:
        output = self.output
        if link.embedded:
            output.remark("no service is running: this command does its work")
        body = await interrupts.guard(self._continued(link), interrupts.first)
        accepted = await interrupts.guard(submit(link, body), interrupts.second)
        if self.detach:
            click.echo(to_json(accepted) if output.as_json else accepted["run_id"])
            return OK
        progress = Progress(run_id=accepted["run_id"], subagent_id=accepted["subagent_id"])
        output.remark(
            f"run {one_line(progress.run_id)} of {one_line(str(body['backend']))}"
            + (f" on {one_line(str(body['repo']), 200)}" if "repo" in body else "")
        )
        async with output.watched():
            await see_through(link, progress, output.event, interrupts=interrupts, on_cancel=output.cancelling)
        run, changes = await interrupts.guard(outcome(link, progress.run_id), interrupts.second)
        exit_code = INTERRUPTED if progress.interrupted else exit_of_run(run)
        try:
            output.result(run, changes, exit_code)
        except BrokenPipeError:
            await cancel(link, progress.run_id)
            raise
        return exit_code

    async def _continued(self, link: ServiceLink) -> Mapping[str, Any]:
        """The body with the whole id of the subagent that goes on.  Raises NotFoundError, InvalidRequestError."""
        if "subagent_id" in self.body:
            return {**self.body, "subagent_id": await find_subagent(link.client, str(self.body["subagent_id"]))}
        if not self.latest:
            return self.body
        found = latest_subagent(
            await link.client.subagents(),
            backend=str(self.body["backend"]),
            repo=self.body.get("repo"),
            names={} if link.remote else self.context.config.repos,
        )
        self.output.remark(f"going on with subagent {one_line(found)}")
        return {**{name: value for name, value in self.body.items() if name != "repo"}, "subagent_id": found}


def latest_subagent(
    subagents: Iterable[Mapping[str, Any]], *, backend: str, repo: str | None, names: Mapping[str, Path]
) -> str:
    """The id of the one that was used last, of those with this backend and this repo (by its name or by its path).

    Raises NotFoundError.
    """
    same = {repo, *(name for name, path in names.items() if str(path) == repo)}
    if repo is not None and repo in names:
        same.add(str(names[repo]))
    fitting = [one for one in subagents if one["backend"] == backend and one.get("repo") in same]
    if not fitting:
        raise NotFoundError(f"no subagent of {backend} on {repo or 'an empty workspace'} to go on with")
    return str(max(fitting, key=lambda one: str(one["last_used_at"]))["subagent_id"])


async def outcome(link: ServiceLink, run_id: str) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """The finished run, and what its workspace changed (None when that cannot be had)."""
    run = await link.call(lambda client: client.run(run_id))
    if run.get("workspace") == "readonly":
        return run, None
    try:
        return run, await link.call(lambda client: client.changes(run["subagent_id"]))
    except PodmentorError:
        return run, None
