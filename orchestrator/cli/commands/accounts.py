"""``podmentor accounts``: who has connected a subscription of their own."""

from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import to_json


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List the subscriptions that are connected.

    `podmentor login` connects one, `podmentor logout` disconnects it.
    """


@group.command("list")
@click.option("--user", metavar="USER", help="Whose.  Default: yours.")
@JSON_OPTION
@click.pass_obj
def list_command(context: CliContext, user: str | None, as_json: bool) -> None:
    """One line for each backend that can use a subscription."""

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.json("GET", "/v1/accounts", params=whose(user))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
        return
    rows = [(one["backend"], one["user_id"], state_of(one), _what_next(one)) for one in found["accounts"]]
    consoles.table(consoles.out(), ("backend", "user", "account", ""), rows)


def whose(user: str | None) -> dict[str, str]:
    """The query parameters that name another user."""
    return {} if user is None else {"user": user}


def state_of(account: dict[str, Any]) -> str:
    """In words."""
    if account["disconnecting"]:
        return "being disconnected"
    if not account["connected"]:
        return "not connected"
    return "in use" if account["run_ids"] else "connected"


def _what_next(account: dict[str, Any]) -> str:
    if account["connected"] and account["mode"] != "byo_subscription":
        return f"not used: set external_agent.backends.{account['backend']}.mode to byo_subscription"
    if not account["connected"] and not account["disconnecting"]:
        return str(account["command"])
    return ""
