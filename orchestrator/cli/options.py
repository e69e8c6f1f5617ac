"""What several commands ask for: their common options, who is at the terminal, a secret."""

import os
import sys

import click

from orchestrator.api.identity import LOCAL_OWNER, is_user_id
from orchestrator.config.models import USER_ID_WORDS
from orchestrator.errors import InvalidRequestError

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
USER_OPTION = click.option(
    "--user", metavar="USER", help=f"Whose.  Default: {LOCAL_OWNER}, as for runs; with --url the token's user."
)
_MAX_CHARS = 16_384


def local_actor() -> str:
    """Who is at this terminal, for the audit log."""
    return f"command:uid {os.getuid()}"


def check_user(user: str | None) -> str:
    """The named user, or the local one.  Raises InvalidRequestError."""
    who = user or LOCAL_OWNER
    if not is_user_id(who):
        raise InvalidRequestError(f"a user is a plain name or an e-mail address: {USER_ID_WORDS}")
    return who


def read_secret(what: str) -> str:
    """One line, without its end.  In a terminal it is asked for and not shown; else all of stdin is taken."""
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True))
    text = sys.stdin.read(_MAX_CHARS)
    return text.removesuffix("\n").removesuffix("\r")
