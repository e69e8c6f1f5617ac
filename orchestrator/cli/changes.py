"""``podmentor changes``: what an agent changed in its overlay."""

import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import console as consoles
from orchestrator.cli import pager
from orchestrator.cli.context import CliContext
from orchestrator.cli.runs import JSON_OPTION, write_bytes
from orchestrator.cli.safe import clean, one_line, to_json
from orchestrator.cli.service import ServiceLink, find_subagent, with_service
from orchestrator.cli.summary import print_changes

_ALL = 10_000
IGNORED_OPTION = click.option("--ignored", is_flag=True, help="Also files that git ignores.")
PATHS = click.argument("paths", nargs=-1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Look at what an agent changed.

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

    Into a file or a pipe it goes byte by byte, so that git apply takes it; on a terminal it is coloured, cleaned of
    control characters, and goes through a pager ($PODMENTOR_PAGER, $PAGER, less).
    """

    async def body(link: ServiceLink) -> bytes:
        return await link.client.patch(await find_subagent(link.client, subagent), paths, ignored=ignored)

    patch = with_service(context, body)
    if sys.stdout.isatty():
        print_diff(patch)
    else:
        write_bytes(patch)


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


def print_diff(patch: bytes) -> None:
    """A diff for people."""
    lines = patch.decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    pager.show([(clean(line), _style(line)) for line in shortened(lines)])


def shortened(lines: list[str]) -> list[str]:
    """Without the lines of binary content, which say nothing to people."""
    out: list[str] = []
    binary = False
    for line in lines:
        if line.startswith("diff --git "):
            binary = False
        if line == "GIT binary patch":
            binary = True
            out.append("Binary content")
        elif not binary:
            out.append(line)
    return out


def _style(line: str) -> str | None:
    if line.startswith(
        ("+++", "---", "diff ", "index ", "new file", "deleted file", "rename ", "old mode", "new mode")
    ):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
