"""``podmentor changes``: what an agent changed in its overlay."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from orchestrator.cli.client.service import ServiceLink, find_run, find_subagent, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.diff import print_diff, write_bytes
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.cli.ui.summary import print_changes
from orchestrator.errors import ConflictError

_ALL = 10_000
_OUTCOMES = {"applied": "green", "merged": "green", "conflict": "red", "kept": "yellow", "skipped": "yellow"}
_TURN_LETTERS = {"changed": ("M", "yellow"), "deleted": ("D", "red"), "restored": ("=", "dim")}
IGNORED_OPTION = click.option("--ignored", is_flag=True, help="Also files that git ignores.")
PATHS = click.argument("paths", nargs=-1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Look at what an agent changed, take it into the repo or drop it.

    SUBAGENT is a subagent's id, or the beginning of it.  PATHs are files or directories, relative to the repo's root.
    """


@group.command("list")
@click.argument("subagent")
@PATHS
@IGNORED_OPTION
@JSON_OPTION
@click.pass_obj
def list_command(context: CliContext, subagent: str, paths: tuple[str, ...], ignored: bool, as_json: bool) -> None:
    """The files that were added (A), modified (M), deleted (D), renamed (R), or whose mode changed (m).

    Files that git ignores are counted apart.
    """

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.change_list(await find_subagent(link.client, subagent), paths)

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
        return
    out = consoles.out()
    print_changes(out, found["changes"], most=_ALL)
    if left := found.get("ignored", []):
        files = f"{len(left)} ignored file{'s'[: len(left) != 1]}"
        if ignored:
            out.out(f"{files}:", highlight=False)
            print_changes(out, left, most=_ALL)
        else:
            out.out(f"{files} not shown (--ignored shows them)", style="dim", highlight=False)


@group.command("diff")
@click.argument("subagent")
@PATHS
@IGNORED_OPTION
@click.pass_obj
def diff_command(context: CliContext, subagent: str, paths: tuple[str, ...], ignored: bool) -> None:
    """The changes as a patch.

    Into a file or a pipe it goes byte by byte, so that git apply takes it; on a terminal it is coloured, shows control
    characters as ^X, and goes through a pager ($PAGER, else less).
    """

    async def body(link: ServiceLink) -> bytes:
        return await link.client.patch(await find_subagent(link.client, subagent), paths, ignored=ignored)

    patch = with_service(context, body)
    if sys.stdout.isatty():
        print_diff(patch)
    else:
        write_bytes(patch)


@group.command("apply")
@click.argument("subagent")
@PATHS
@IGNORED_OPTION
@click.option("--merge", "on_conflict", flag_value="merge", help="Merge files that both sides changed, as git does.")
@click.option("--theirs", "on_conflict", flag_value="theirs", help="In conflicts take the agent's file.")
@click.option("--ours", "on_conflict", flag_value="ours", help="In conflicts keep the repo's file.")
@click.option("--branch", metavar="NAME", help="Commit on this new branch; the work tree is not touched.")
@click.option("--message", "-m", help="Message of that commit.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be done.")
@JSON_OPTION
@click.pass_obj
def apply_command(
    context: CliContext,
    subagent: str,
    paths: tuple[str, ...],
    ignored: bool,
    on_conflict: str | None,
    branch: str | None,
    message: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring the changes, or those at PATHs, into the repo: all of them or, when one is in conflict, none."""
    if message is not None and branch is None:
        raise click.UsageError("--message is for a commit: give --branch too")
    body = {"paths": list(paths), "ignored": ignored, "on_conflict": on_conflict or "refuse", "dry_run": dry_run}
    body |= {name: value for name, value in (("branch", branch), ("message", message)) if value is not None}

    async def send(link: ServiceLink) -> dict[str, Any]:
        return await link.client.apply(await find_subagent(link.client, subagent), body)

    try:
        done = with_service(context, send)
    except ConflictError as error:
        if not as_json and isinstance(files := error.details.get("files"), list):
            print_outcomes(consoles.err(), files)
        raise
    if as_json:
        click.echo(to_json(done))
        return
    out = consoles.out()
    print_outcomes(out, done["files"])
    count = sum(one["outcome"] in {"applied", "merged"} for one in done["files"])
    files = f"{count} file{'s'[: count != 1]}"
    if branch is not None and not done["applied"] and not dry_run:
        out.out("nothing to commit: no branch was made", style="yellow", highlight=False)
    elif not done["applied"]:
        out.out(f"dry run: {files} would be applied", style="yellow", highlight=False)
    elif done["branch"]:
        out.out(
            f"{files} on branch {clean(done['branch'])} ({str(done['commit'])[:12]})", style="green", highlight=False
        )
    else:
        out.out(f"{files} applied", style="green", highlight=False)
    if dry_run and any(one["outcome"] == "conflict" for one in done["files"]):
        raise click.exceptions.Exit(FAILED)


@group.command("discard")
@click.argument("subagent")
@PATHS
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@JSON_OPTION
@click.pass_obj
def discard_command(context: CliContext, subagent: str, paths: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Drop the changes, or those at PATHs: the agent sees there again what the repo has.

    Without PATHs everything goes, ignored files and the agent's own commits too.
    """

    async def find(link: ServiceLink) -> str:
        return await find_subagent(link.client, subagent)

    found = with_service(context, find)
    if not yes:
        what = f"the changes at {', '.join(one_line(path) for path in paths)}" if paths else "all changes"
        click.confirm(f"Drop {what} of {found}?", abort=True, err=True)

    async def send(link: ServiceLink) -> dict[str, Any]:
        return await link.client.discard(found, paths)

    done = with_service(context, send)
    if as_json:
        click.echo(to_json(done))
        return
    count = len(done["discarded"])
    click.echo(f"dropped {count} file{'s'[: count != 1]}")


@group.command("commits")
@click.argument("subagent")
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), help="Write them to this git bundle.")
@click.option("--patch", is_flag=True, help="Print them as patches for git am.")
@JSON_OPTION
@click.pass_obj
def commits_command(context: CliContext, subagent: str, bundle: Path | None, patch: bool, as_json: bool) -> None:
    """The commits that the agent made in its overlay, newest first."""

    async def listed(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.commits(await find_subagent(link.client, subagent))

    async def exported(link: ServiceLink) -> bytes:
        return await link.client.commits_file(
            await find_subagent(link.client, subagent), "patch" if patch else "bundle"
        )

    if bundle is not None or patch:
        if bundle is not None and patch:
            raise click.UsageError("--bundle and --patch are two forms of the same: give one")
        data = with_service(context, exported)
        if bundle is None:
            write_bytes(data)
        else:
            bundle.write_bytes(data)
            click.echo(f"wrote {bundle}; take it with: git fetch {bundle} 'refs/heads/*:refs/remotes/agent/*'")
        return
    found = with_service(context, listed)
    if as_json:
        click.echo(to_json({"commits": found}))
        return
    out = consoles.out()
    if not found:
        out.out("no commits", style="dim", highlight=False)
    for commit in found:
        refs = ", ".join(clean(str(ref).removeprefix("refs/heads/")) for ref in commit["refs"])
        out.out(clean(str(commit["commit"]))[:12], style="yellow", end=" ", highlight=False)
        out.out(one_line(str(commit["subject"])) + (f"  ({refs})" if refs else ""), highlight=False)


@group.command("run")
@click.argument("run")
@JSON_OPTION
@click.pass_obj
def run_command(context: CliContext, run: str, as_json: bool) -> None:
    """What one run changed (M), deleted (D), or made again what the repo has (=)."""

    async def body(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.run_changes(await find_run(link.client, run))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json({"changes": found}))
        return
    out = consoles.out()
    if not found:
        out.out("no file changed", style="dim", highlight=False)
    for one in found:
        letter, style = _TURN_LETTERS.get(str(one.get("change")), ("?", "dim"))
        out.out(f"  {letter} ", end="", style=style, highlight=False)
        out.out(one_line(str(one.get("path")), 200), highlight=False)


@group.command("rollback")
@click.argument("subagent")
@click.argument("run")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def rollback_command(context: CliContext, subagent: str, run: str, yes: bool) -> None:
    """Take the workspace back to the end of RUN, with all that was in it then.

    The repo is not touched, and the agent remembers what it did.
    """

    async def find(link: ServiceLink) -> tuple[str, str]:
        return await find_subagent(link.client, subagent), await find_run(link.client, run)

    found, target = with_service(context, find)
    if not yes:
        click.confirm(f"Take the workspace of {found} back to the end of run {target}?", abort=True, err=True)

    async def send(link: ServiceLink) -> None:
        await link.client.rollback(found, target)

    with_service(context, send)
    click.echo(f"the workspace is as it was at the end of run {target}")


def print_outcomes(console: Console, files: list[dict[str, Any]]) -> None:
    """One line for each path; the reason where there is one."""
    for one in files:
        outcome = str(one.get("outcome"))
        console.out(f"  {clean(outcome):<9}", end="", style=_OUTCOMES.get(outcome), highlight=False)
        reason = f"  ({one_line(str(one['reason']), 300)})" if one.get("reason") else ""
        console.out(f"{one_line(str(one.get('path')), 200)}{reason}", highlight=False)
