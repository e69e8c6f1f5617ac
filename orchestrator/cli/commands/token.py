"""``podmentor token``: make, list and revoke the tokens of the HTTP API.

Works on the service's database directly, so it needs no running service, and a running one sees the change at once.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

import click

from orchestrator.api.identity import ROLES, Role
from orchestrator.api.tokens import NewToken, TokenRecord, TokenStore
from orchestrator.cli.options import local_actor
from orchestrator.cli.ui import console as consoles
from orchestrator.config.models import Paths
from orchestrator.contract.audit import Audit
from orchestrator.errors import StorageError

T = TypeVar("T")
_SPAN = re.compile(r"([1-9]\d{0,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TITLES = ("ID", "NAME", "ROLE", "CREATED", "LAST USED", "EXPIRES", "STATE")


class TokenContext(Protocol):
    """What these commands need of the command's context."""

    @property
    def paths(self) -> Paths:
        """Where the service keeps its state."""
        ...


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """A span from now (``12h``, ``30d``) or a date; a date is UTC unless it says else."""
    if value is None:
        return None
    try:
        if match := _SPAN.fullmatch(value):
            return datetime.now(UTC) + timedelta(**{_UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        message = f"{value!r} is neither a span (90m, 12h, 30d, 8w) nor a date (2030-01-31)"
        raise click.BadParameter(message) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.group(name="token")
def group() -> None:
    """Make and revoke tokens for the HTTP API.

    The command on this machine needs none: it uses the local token file.
    """


@group.command(name="create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="user: its own runs only.  service: may act for the user it names in X-Podmentor-User.  admin: sees all."
    "  metrics: may read /metrics and nothing else.",
)
@click.option(
    "--expires", callback=_moment, metavar="WHEN", help="When it ends: 12h, 30d, 8w, or a date.  Default: never."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def create(context: TokenContext, name: str, role: Role, expires: datetime | None, as_json: bool) -> None:
    """Make a token for NAME and print it, once.

    For the role `user`, NAME is the user's id: everything that this token makes belongs to it.
    """

    async def make(store: TokenStore) -> NewToken:
        new = await store.create(name, role, expires_at=expires)
        try:
            await _audit(context).record(
                "token.created",
                actor=local_actor(),
                token_id=new.record.id,
                name=name,
                role=role,
                expires_at=new.record.expires_at,
            )
        except StorageError:
            await store.revoke(new.record.id)  # it was shown to nobody
            raise
        return new

    new = _with_store(context, make)
    if as_json:
        click.echo(json.dumps({**new.record.to_dict(), "token": new.text}, indent=2))
        return
    click.echo(new.text)
    click.echo(f"Token {new.record.id} for {name} ({role}). It is shown this once: keep it now.", err=True)


@group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_tokens(context: TokenContext, as_json: bool) -> None:
    """List all tokens, never their secrets."""
    records = _with_store(context, lambda store: store.list_tokens())
    if as_json:
        click.echo(json.dumps([record.to_dict() for record in records], indent=2))
        return
    rows = [_row(record) for record in records]
    consoles.table(consoles.out(), _TITLES, rows, spare=("CREATED", "LAST USED", "EXPIRES"))


@group.command(name="revoke")
@click.argument("token_id", metavar="ID")
@click.pass_obj
def revoke(context: TokenContext, token_id: str) -> None:
    """Refuse the token with this ID from now on (its runs stay)."""

    async def work(store: TokenStore) -> TokenRecord:
        if token_id in {record.id for record in await store.list_tokens()}:
            await _audit(context).record("token.revoked", actor=local_actor(), token_id=token_id)
        return await store.revoke(token_id)

    record = _with_store(context, work)
    click.echo(f"Token {record.id} of {record.name} is revoked.", err=True)


def _audit(context: TokenContext) -> Audit:
    from orchestrator.bootstrap.audit import audit_log

    return audit_log(context.paths)


def _row(record: TokenRecord) -> tuple[str, ...]:
    state = "active"
    if record.revoked_at is not None:
        state = "revoked"
    elif record.expires_at is not None and datetime.fromisoformat(record.expires_at) <= datetime.now(UTC):
        state = "expired"
    return (
        record.id,
        record.name,
        record.role,
        record.created_at,
        record.last_used_at or "never",
        record.expires_at or "never",
        state,
    )


def _with_store(context: TokenContext, work: Callable[[TokenStore], Awaitable[T]]) -> T:
    async def inner() -> T:
        async with TokenStore(context.paths.database) as store:
            return await work(store)

    return asyncio.run(inner())
