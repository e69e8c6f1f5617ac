"""``podmentor keys``: users' own keys.

Without ``--url`` this works on the vault directly, so it needs no running service, and a running one sees the change at
once.  With it, the keys are those of the token's user, or of ``--user`` when the token may act for others.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import click

from orchestrator.cli.client.service import ServiceLink, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION, USER_OPTION, check_user, local_actor, read_secret
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import one_line, to_json
from orchestrator.contract.credentials import KeyInfo, UserKeys

T = TypeVar("T")
Json = dict[str, Any]


@click.group(name="keys")
def group() -> None:
    """Store, list and remove users' own keys.

    A key is kept encrypted, used for its user's runs alone, and never shown again.
    """


@group.command("set")
@click.argument("backend")
@USER_OPTION
@JSON_OPTION
@click.pass_obj
def set_key(context: CliContext, backend: str, user: str | None, as_json: bool) -> None:
    """Store the key for BACKEND: from a prompt that does not show it, or from stdin.

    \b
        podmentor keys set claude-code < key.txt
    """
    api_key = read_secret(f"Key for {one_line(backend)}")
    if context.url is not None:
        found = _call(context, user, "PUT", _path(backend), body={"api_key": api_key})
    else:
        who = check_user(user)
        info = _direct(
            context, lambda keys: keys.put(user_id=who, backend=backend, api_key=api_key, actor=local_actor())
        )
        found = _plain(info)
    if as_json:
        click.echo(to_json(found))
    else:
        click.echo(f"stored for {one_line(found['user_id'])}: {one_line(found['backend'])} {found['fingerprint']}")


@group.command("list")
@USER_OPTION
@click.option("--all", "everybody", is_flag=True, help="Everybody's (not with --url).")
@JSON_OPTION
@click.pass_obj
def list_keys(context: CliContext, user: str | None, everybody: bool, as_json: bool) -> None:
    """List keys by their fingerprints."""
    if context.url is not None:
        found = list(_call(context, user, "GET", "/v1/keys")["keys"])
    else:
        who = None if everybody else check_user(user)
        found = [_plain(info) for info in _direct(context, lambda keys: keys.list_keys(user_id=who))]
    if as_json:
        click.echo(to_json({"keys": found}))
        return
    rows = [
        (
            one_line(key["user_id"]),
            one_line(key["backend"]),
            key["fingerprint"],
            key["updated_at"],
            key["last_used_at"] or "never",
        )
        for key in found
    ]
    titles = ("user", "backend", "fingerprint", "stored", "last used")
    consoles.table(consoles.out(), titles, rows, spare=("stored", "user"))


@group.command("delete")
@click.argument("backend")
@USER_OPTION
@click.pass_obj
def delete_key(context: CliContext, backend: str, user: str | None) -> None:
    """Remove the key for BACKEND.  Runs that have begun with it go on."""
    if context.url is not None:
        _call(context, user, "DELETE", _path(backend))
    else:
        who = check_user(user)
        _direct(context, lambda keys: keys.delete(user_id=who, backend=backend, actor=local_actor()))
    click.echo(f"removed: {one_line(backend)}", err=True)


def _direct(context: CliContext, work: Callable[[UserKeys], Awaitable[T]]) -> T:
    from orchestrator.bootstrap.vault import own_keys

    async def inner() -> T:
        async with own_keys(context.config, context.paths) as keys:
            return await work(keys)

    return asyncio.run(inner())


def _call(
    context: CliContext, user: str | None, method: str, path: str, *, body: Mapping[str, Any] | None = None
) -> Json:
    headers = {} if user is None else {"X-Podmentor-User": check_user(user)}

    async def ask(link: ServiceLink) -> Json:
        if method == "DELETE":
            await link.client.call(method, path, headers=headers)
            return {}
        return await link.client.json(method, path, body=body, headers=headers)

    return with_service(context, ask)


def _path(backend: str) -> str:
    return f"/v1/keys/{quote(backend, safe='')}"


def _plain(info: KeyInfo) -> Json:
    return dataclasses.asdict(info)
