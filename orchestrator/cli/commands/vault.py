"""``podmentor vault``: the operator's side of the vault.

Works on the state directory directly: with or without a running service, which sees every change at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from orchestrator.api.identity import is_plain_name
from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED, OK
from orchestrator.cli.options import JSON_OPTION, local_actor, read_secret
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.errors import InvalidRequestError

if TYPE_CHECKING:
    from orchestrator.bootstrap.vault import VaultAdmin

T = TypeVar("T")


@click.group(name="vault")
def group() -> None:
    """Make the vault, look at it, rotate its master key; keep secrets for podmentor.yaml.

    The vault keeps users' own keys and the secrets that the configuration names as ${secret:NAME}, encrypted with a
    master key from a file (vault.key_file, by default vault.key in the state directory) or from a variable
    (vault.key_env, by default PODMENTOR_VAULT_KEY).
    """


@group.command("init")
@click.option("--discard-secrets", is_flag=True, help="Give up what was stored under a key that is lost.")
@click.option("--print", "print_key", is_flag=True, help="Print a new key, for a variable; nothing is stored.")
@click.pass_obj
def init(context: CliContext, discard_secrets: bool, print_key: bool) -> None:
    """Make the master key.  Back it up apart from the state directory: without it the secrets are lost."""
    if print_key:
        from orchestrator.bootstrap.vault import new_master_key

        click.echo(new_master_key())
        return
    key_id = _with_admin(context, lambda admin: admin.init(discard=discard_secrets))
    place = _with_admin(context, _place)
    click.echo(f"the vault is ready: master key {key_id} in {clean(place)}")
    click.echo("back this key up, apart from the state directory: without it what is stored is lost", err=True)


async def _place(admin: "VaultAdmin") -> str:
    return str(admin.place)


@group.command("status")
@JSON_OPTION
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Whether there is a vault, under which key, and whether everything in it can be read; exit 1 when not."""
    found = _with_admin(ctx.obj, lambda admin: admin.status())
    if as_json:
        click.echo(to_json(found))
    elif not found["configured"]:
        click.echo("no vault is configured: podmentor vault init makes one")
        if found["secrets"]:
            click.echo(f"✗ {found['secrets']} secrets are stored and cannot be used")
    else:
        key = found["key_id"] or "none that can be used"
        click.echo(f"master key {key} from {clean(found['place'])}; {found['secrets']} secrets")
        if found["error"]:
            click.echo(f"✗ {clean(found['error'])}")
        for one in found["unreadable"]:
            click.echo(f"✗ {clean(one['user_id'])}: {clean(one['error'])}")
        if found["rotation_unfinished"]:
            click.echo("! a rotation was cut short; the next start of the service or the next rotation tidies up")
    bad = bool(found["error"] or found["unreadable"] or (found["secrets"] and not found["configured"]))
    ctx.exit(FAILED if bad else OK)


@group.command("rotate")
@JSON_OPTION
@click.pass_obj
def rotate(context: CliContext, as_json: bool) -> None:
    """Put a new master key in the place of the old one: everything is encrypted anew, at once or not at all.

    A crash at any moment leaves a vault that opens.  With the key in a variable, put the new one into that variable's
    name with _NEXT behind it first.  Fingerprints change.
    """

    def step(name: str) -> None:
        if not as_json:
            click.echo(f"{name} …", err=True)

    found = _with_admin(context, lambda admin: admin.rotate(on_step=step))
    if as_json:
        click.echo(to_json(found))
        return
    click.echo(f"the master key is now {found['key_id']}; {found['secrets']} secrets were encrypted anew")
    click.echo("back the new key up; older copies of the state directory still need the old one", err=True)


@group.command("set")
@click.argument("name")
@click.pass_obj
def set_secret(context: CliContext, name: str) -> None:
    """Store the secret that podmentor.yaml names as ${secret:NAME}: from a hidden prompt or from stdin.

    The service reads it when it starts.
    """
    if not is_plain_name(name):
        raise InvalidRequestError("a secret's name has letters, digits, '.', '_' and '-', at most 64")
    value = read_secret(f"Value of {name}")
    info = _with_admin(context, lambda admin: admin.put(name, value))
    click.echo(f"stored: {name} {info.fingerprint}")


@group.command("list")
@JSON_OPTION
@click.pass_obj
def list_secrets(context: CliContext, as_json: bool) -> None:
    """List the configuration's secrets by their fingerprints."""
    found = _with_admin(context, lambda admin: admin.list_secrets())
    if as_json:
        click.echo(to_json({"secrets": found}))
        return
    rows = [
        (one_line(one["name"]), one["fingerprint"], one["updated_at"], one["last_used_at"] or "never") for one in found
    ]
    consoles.table(consoles.out(), ("name", "fingerprint", "stored", "last used"), rows, spare=("stored",))


@group.command("delete")
@click.argument("name")
@click.pass_obj
def delete_secret(context: CliContext, name: str) -> None:
    """Remove a secret of the configuration."""
    _with_admin(context, lambda admin: admin.delete(name))
    click.echo(f"removed: {one_line(name)}", err=True)


def _with_admin(context: CliContext, work: Callable[["VaultAdmin"], Awaitable[T]]) -> T:
    from orchestrator.bootstrap.vault import vault_admin

    async def inner() -> T:
        async with vault_admin(context.config, context.paths, actor=local_actor()) as admin:
            return await work(admin)

    return asyncio.run(inner())
