"""How a secret gets into a command: from stdin or a hidden prompt, never from an argument that others can read."""

import sys

import click

_MAX_CHARS = 16_384


def read_secret(what: str) -> str:
    """One line, without its end.  In a terminal it is asked for and not shown; else all of stdin is taken."""
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True))
    text = sys.stdin.read(_MAX_CHARS)
    return text.removesuffix("\n").removesuffix("\r")
