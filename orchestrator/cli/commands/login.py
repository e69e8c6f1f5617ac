"""``podmentor login`` and ``podmentor logout``: a user's own subscription, by the CLI's own login."""

import asyncio
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.commands.accounts import whose
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import DENIED, INTERRUPTED, USAGE, CliError
from orchestrator.cli.options import local_actor
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean

_USER = click.option("--user", metavar="USER", help="Whose account.  Default: yours.")


@click.command()
@click.argument("backend")
@_USER
@click.pass_obj
def login(context: CliContext, backend: str, user: str | None) -> None:
    """Connect your own subscription to BACKEND.

    Runs the CLI's own login in the backend's container, at this terminal, with a HOME that is kept for you alone.
    podmentor does not see what you type, nor the login that the provider gives.
    """
    if context.url is not None:
        raise CliError(
            "a login happens on the machine where podmentor runs: type this command there",
            code="invalid_request",
            exit_code=USAGE,
        )
    if not has_terminal():
        raise CliError("a login needs a terminal", code="invalid_request", exit_code=USAGE)
    out = consoles.err()
    account = with_service(context, lambda link: _call(link, "POST", backend, user, "/connect"))
    if account["run_ids"]:
        raise CliError(
            f"the run {account['run_ids'][0]} is using this account now",
            code="conflict",
            exit_code=DENIED,
            hint="wait for its end, or: podmentor runs cancel " + account["run_ids"][0],
        )
    who = clean(account["user_id"])
    out.print(f"Connecting {who}'s account to {clean(backend)}.  The CLI's own login follows (Ctrl-C leaves it);")
    out.print(
        f"what it stores stays in {context.paths.plugin_storage / 'homes' / account['user_id'] / account['backend']}"
    )
    try:
        code = asyncio.run(_at_the_terminal(context, account))
    except asyncio.CancelledError:
        raise click.exceptions.Exit(INTERRUPTED) from None
    status = with_service(context, lambda link: _call(link, "POST", backend, user, "/finished"))
    if not status["authenticated"]:
        said = f" (the login ended with exit code {code})" if code else ""
        raise CliError(
            f"not connected: {status.get('error') or 'the CLI finds no login'}{said}",
            code="auth_required",
            exit_code=DENIED,
            hint=f"try again: {account['command']}",
        )
    out.print(f"Connected: {clean(backend)} now has {who}'s account.")
    if account["mode"] != "byo_subscription":
        out.print(f"It is not used yet: set external_agent.backends.{clean(backend)}.mode to byo_subscription.")


@click.command()
@click.argument("backend")
@_USER
@click.option("--wait", "mode", flag_value="wait", help="Let runs that use the account finish first.")
@click.option("--cancel", "mode", flag_value="cancel", help="End runs that use the account.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def logout(context: CliContext, backend: str, user: str | None, mode: str | None, yes: bool) -> None:
    """Disconnect your subscription from BACKEND: its login, and all that the CLI has stored beside it, is removed.

    The CLI's records of conversations are among that: subagents that used this account cannot be continued.
    """
    if not yes:
        click.confirm(f"Remove the login for {backend} with the CLI's records of its conversations?", abort=True)

    async def body(link: ServiceLink) -> dict[str, Any]:
        options = {"timeout": "0"} | ({} if mode is None else {"mode": mode})
        account = await _call(link, "DELETE", backend, user, **options)
        while account["disconnecting"]:
            account = await _call(link, "DELETE", backend, user, mode=mode or "wait", timeout="30")
        return account

    account = with_service(context, body)
    click.echo(f"disconnected {clean(account['user_id'])} from {clean(account['backend'])}")


def has_terminal() -> bool:
    """Whether a person can be asked something here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def _call(
    link: ServiceLink, method: str, backend: str, user: str | None, what: str = "", **params: str
) -> dict[str, Any]:
    path = f"/ui/plugins/external_agent/subscription/{quote(backend, safe='')}{what}"
    return await link.client.json(method, path, params={**whose(user), **params})


async def _at_the_terminal(context: CliContext, account: dict[str, Any]) -> int:
    """The login itself; its exit code.

    Ctrl-C leaves it: with the terminal in raw mode it is a key that Podman takes for the end, before that it is a
    signal.  Whatever ends it, the terminal is as before and nothing of the container is left.
    """
    from orchestrator.bootstrap.login import login_sandbox

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, task.cancel)
    whose_account = {"user_id": account["user_id"], "backend": account["backend"]}
    async with login_sandbox(context.config, context.paths, **whose_account, actor=local_actor()) as (argv, env):
        with _terminal_as_before():
            process = await asyncio.create_subprocess_exec(*argv, env=env)
            try:
                return await process.wait()  # bounded: the container has a time limit
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


@contextmanager
def _terminal_as_before() -> Iterator[None]:
    """A program that is killed leaves the terminal in the mode that it had set."""
    try:
        mode = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # no terminal
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
