"""A group whose commands are imported when they are called, not before."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from orchestrator.cli.exits import FAILED, CliError


class Lazy(NamedTuple):
    """Where a command is, and its line in the list of commands."""

    target: str
    """``module:attribute``."""
    help: str


class LazyGroup(click.Group):
    """Lists its commands from the table; one that cannot be imported breaks only itself."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = dict(table or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command.  Raises CliError when that fails."""
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.table[cmd_name].target.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            message = f"the command {cmd_name!r} is not part of this installation: {error}"
            raise CliError(message, code="not_installed", exit_code=FAILED) from error
        if not isinstance(command, click.Command):
            raise CliError(f"{self.table[cmd_name].target} is no command", code="not_installed", exit_code=FAILED)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With advice for a typo."""
        name = args[0] if args else ""
        names = self.list_commands(ctx)
        if name and name not in names and not name.startswith("-"):
            close = difflib.get_close_matches(name, names, n=1)
            advice = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing anything."""
        rows = [(name, lazy.help) for name, lazy in self.table.items()]
        rows += [(name, self.commands[name].get_short_help_str(80)) for name in super().list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
