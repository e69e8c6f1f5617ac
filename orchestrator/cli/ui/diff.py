"""Patches: byte by byte for git, and for people with everything in them made visible."""

import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import visible


def write_bytes(data: bytes) -> None:
    """Exact bytes into a pipe or file; to a terminal text in which control characters are visible."""
    if sys.stdout.isatty():
        for line in data.decode("utf-8", errors="replace").removesuffix("\n").split("\n"):
            click.echo(visible(line.removesuffix("\r")))
    else:
        click.echo(data, nl=False)


def print_diff(patch: bytes) -> None:
    """A patch for people; in a terminal that it does not fit on, through ``$PAGER`` (or less)."""
    lines = patch.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    out = consoles.out()
    if not (out.is_terminal and sys.stdin.isatty() and len(lines) >= out.size.height):
        _print_lines(out, lines)
        return
    with out.capture() as captured:
        _print_lines(out, lines)
    os.environ.setdefault("LESS", "-FRX")  # colours, and what was shown stays in the terminal, as with git
    text = captured.get().removesuffix("\n")
    try:
        click.echo_via_pager(text)
    except ValueError:  # $PAGER is no command line
        click.echo(text)


def _print_lines(out: Console, lines: Sequence[str]) -> None:
    for line in shortened(lines):
        out.out(visible(line.removesuffix("\r")), style=_style(line), highlight=False)


def shortened(lines: Sequence[str]) -> list[str]:
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
