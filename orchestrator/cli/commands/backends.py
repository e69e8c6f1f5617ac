"""``podmentor backends``: which agents can be run here."""

from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import one_line, to_json


@click.command()
@JSON_OPTION
@click.pass_obj
def command(context: CliContext, as_json: bool) -> None:
    """List the enabled backends: image, version, whether there is a credential, what they can do."""

    async def body(link: ServiceLink) -> list[dict[str, Any]]:
        return await link.client.backends()

    found = with_service(context, body)
    if as_json:
        click.echo(to_json({"backends": found}))
        return
    rows = [
        (
            one["name"],
            one.get("cli_version") or "-",
            one.get("image_tag") or "not built",
            _auth(one.get("auth") or {}),
            ", ".join(name for name, can in one["capabilities"].items() if can),
        )
        for one in found
    ]
    titles = ("backend", "version", "image", "credential", "can")
    consoles.table(consoles.out(), titles, rows, spare=("can", "image"))


def _auth(auth: dict[str, Any]) -> str:
    if auth.get("authenticated"):
        return str(auth.get("source") or "yes")
    return f"none ({one_line(str(auth['error']), 60)})" if auth.get("error") else "none"
