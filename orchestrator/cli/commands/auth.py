"""``podmentor auth``: which credential a run would use."""

import asyncio
from typing import Any

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import DENIED, OK
from orchestrator.cli.options import JSON_OPTION, USER_OPTION, check_user
from orchestrator.cli.ui.safe import clean, to_json


@click.group(name="auth")
def group() -> None:
    """See which credential a run would use."""


@group.command("explain")
@click.argument("backend")
@USER_OPTION
@JSON_OPTION
@click.pass_context
def explain(ctx: click.Context, backend: str, user: str | None, as_json: bool) -> None:
    """Where a credential for BACKEND is looked for, what is found, and what is taken; exit 4 when there is none."""
    context: CliContext = ctx.obj
    found = _remote(context, backend, user) if context.url is not None else _local(context, backend, user)
    if as_json:
        click.echo(to_json(found))
    else:
        click.echo(f"a run of {clean(found['user_id'])} with {clean(found['backend'])} asks, in this order:")
        for one in found["sources"]:
            click.echo(f"{'→' if one['chosen'] else ' '} {clean(one['source']):17} {clean(one['reason'])}")
    ctx.exit(OK if any(one["chosen"] for one in found["sources"]) else DENIED)


def _local(context: CliContext, backend: str, user: str | None) -> dict[str, Any]:
    from orchestrator.bootstrap.vault import explain_credentials

    who = check_user(user)
    sources = asyncio.run(explain_credentials(context.config, context.paths, user_id=who, backend=backend))
    return {"user_id": who, "backend": backend, "sources": sources}


def _remote(context: CliContext, backend: str, user: str | None) -> dict[str, Any]:
    headers = {} if user is None else {"X-Podmentor-User": check_user(user)}

    async def ask(link: ServiceLink) -> dict[str, Any]:
        return await link.client.json("GET", "/v1/auth/explain", params={"backend": backend}, headers=headers)

    return with_service(context, ask)
