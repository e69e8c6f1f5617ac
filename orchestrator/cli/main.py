"""The root of the command: global options, the table of sub-commands, and how errors are shown."""

import logging
import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED, HELP, INTERRUPTED, CliError, shown
from orchestrator.cli.lazy import Lazy, LazyGroup
from orchestrator.cli.ui.safe import StderrHandler
from orchestrator.errors import PodmentorError
from orchestrator.system.own_memory import close_own_memory

COMMANDS = {
    "run": Lazy("orchestrator.cli.commands.run:command", "Give a prompt to an agent and watch it work."),
    "demo": Lazy("orchestrator.cli.commands.demo:command", "See a whole run without a key or a network."),
    "runs": Lazy("orchestrator.cli.commands.runs:group", "List, show, replay and cancel runs."),
    "subagents": Lazy("orchestrator.cli.commands.subagents:group", "List, show and delete subagents (conversations)."),
    "changes": Lazy("orchestrator.cli.commands.changes:group", "Look at what an agent changed, take or drop it."),
    "gc": Lazy("orchestrator.cli.commands.gc:command", "Remove what is old, and say what that frees."),
    "backends": Lazy("orchestrator.cli.commands.backends:command", "List the enabled backends."),
    "login": Lazy("orchestrator.cli.commands.login:login", "Connect your own subscription to a backend."),
    "logout": Lazy("orchestrator.cli.commands.login:logout", "Disconnect it."),
    "accounts": Lazy("orchestrator.cli.commands.accounts:group", "List the connected subscriptions."),
    "serve": Lazy("orchestrator.cli.commands.serve:command", "Run the service."),
    "images": Lazy("orchestrator.cli.commands.images:group", "Build, list and prune the images."),
    "bench": Lazy("orchestrator.cli.commands.bench:command", "Try the agents' real images, check by check."),
    "token": Lazy("orchestrator.cli.commands.token:group", "Make and revoke tokens for the HTTP API."),
    "keys": Lazy("orchestrator.cli.commands.keys:group", "Store and remove users' own keys."),
    "auth": Lazy("orchestrator.cli.commands.auth:group", "See which credential a run would use."),
    "vault": Lazy(
        "orchestrator.cli.commands.vault:group", "Make the vault, rotate its key, keep secrets for the configuration."
    ),
    "audit": Lazy("orchestrator.cli.commands.audit:group", "Read the audit log: who did what, and what was reached."),
    "config": Lazy("orchestrator.cli.commands.config:group", "Check and show the configuration."),
    "doctor": Lazy("orchestrator.cli.commands.doctor:command", "Check what this machine needs, and how to mend it."),
}


class Root(LazyGroup):
    """Turns every error into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except PodmentorError as error:
            logging.getLogger(__name__).debug("the error in full", exc_info=error)
            raise shown(error) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except Exception as error:
            logging.getLogger(__name__).info("the error in full", exc_info=error)
            hint = None if logging.getLogger().isEnabledFor(logging.INFO) else "podmentor -v … shows where"
            message = f"unexpected {type(error).__name__}: {error}"
            raise CliError(message, code="internal", exit_code=FAILED, hint=hint) from None


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("podmentor")
    except PackageNotFoundError:
        found = "(from a checkout that is not installed)"
    click.echo(f"podmentor {found}")
    ctx.exit()


@click.group(
    cls=Root,
    table=COMMANDS,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="Configuration file.  Default: $PODMENTOR_CONFIG, ./podmentor.yaml, ~/.config/podmentor/podmentor.yaml, "
    "else built-in defaults.",
)
@click.option(
    "--state",
    "state_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="State directory.  Default: as configured, $PODMENTOR_STATE, ~/.local/state/podmentor.",
)
@click.option(
    "--url",
    envvar="PODMENTOR_URL",
    metavar="URL",
    help="Use the service at this URL (or $PODMENTOR_URL), with the token in $PODMENTOR_TOKEN.",
)
@click.option("-v", "--verbose", count=True, help="Log more to stderr; -vv for everything.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.pass_context
def cli(ctx: click.Context, config_path: Path | None, state_dir: Path | None, url: str | None, verbose: int) -> None:
    """Run coding agents in rootless Podman containers.

    Each run gets its own container and works on an overlay of your repo: you read its transcript, its answer and its
    diff, and your files stay as they were.  A service that is already running is used; without one, the command does
    the service's work itself.

    \b
    Begin with:
        podmentor doctor                 what this machine needs
        podmentor images build --all     build the agents' images
        podmentor demo                   a whole run, no key needed
        podmentor run claude-code "fix the failing test"
    """
    ctx.obj = CliContext(config_path=config_path, state_dir=state_dir, url=url or None, verbose=verbose)
    set_up_logging(verbose)


def set_up_logging(verbose: int) -> None:
    """Logs go to stderr: errors only, with -v remarks, with -vv everything."""
    root = logging.getLogger()
    root.setLevel({0: logging.ERROR, 1: logging.INFO}.get(verbose, logging.DEBUG))
    if not any(isinstance(handler, StderrHandler) for handler in root.handlers):
        root.addHandler(StderrHandler())


def main() -> None:
    """The entry point ``podmentor``."""
    close_own_memory()  # every command may hold a token, a key or a prompt, and the service does
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows "?" instead of breaking
    cli.main(prog_name="podmentor")
