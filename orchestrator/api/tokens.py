"""Tokens of the API: made once, shown once, kept as hashes.

A token reads ``pmt_<id>_<secret>``: the id finds the row, the secret (256 bits) proves it.  Only the SHA-256 of the
whole text is stored, which is enough for a secret that cannot be guessed.  Every request asks the database, so that a
token revoked by another process is refused at once.
"""

import hashlib
import hmac
import logging
import re
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from orchestrator.api.identity import LOCAL_OWNER, ROLES, Identity, Role, check_name
from orchestrator.api.local_token import LOCAL_PREFIX
from orchestrator.errors import InvalidRequestError, NotFoundError, UnauthorizedError
from orchestrator.system.sqlite import BUSY_MS, SqliteThread
from orchestrator.system.times import parse, rfc3339, utc_now

log = logging.getLogger(__name__)
_FORM = re.compile(r"pmt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_USE_STEP: Final = timedelta(minutes=1)
"""``last_used_at`` is written at most this often: a busy client must not cost a write per request."""
_UNKNOWN: Final = "the token is not known here: make one with `podmentor token create`"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT,
    expires_at TEXT,
    revoked_at TEXT
) STRICT
"""
_COLUMNS: Final = "id, name, role, created_at, last_used_at, expires_at, revoked_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What is known of a token: everything but the token.  Times are RFC 3339 UTC."""

    id: str
    name: str
    """For the role ``user`` this is the user id."""
    role: Role
    created_at: str
    last_used_at: str | None
    """To the minute."""
    expires_at: str | None
    revoked_at: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token just made.  ``text`` is shown once and exists nowhere else."""

    record: TokenRecord
    text: str

    def __repr__(self) -> str:
        return f"NewToken(record={self.record!r})"


class TokenStore:
    """The table ``tokens`` in the service's database, on a connection and a thread of its own.

    ``local_token``: what ``ensure_local_token`` gave; None: there is no local owner.  Every method may raise
    StorageError.  ``aclose`` (or ``async with``) ends the thread.
    """

    def __init__(self, path: Path, *, local_token: str | None = None, now: Callable[[], datetime] = utc_now) -> None:
        self._local = local_token.encode() if local_token else None
        self._now = now
        self._database = SqliteThread(path, name="the token store", prepare=_make_schema)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Open the database now, so that trouble shows at the start; otherwise the first use opens it."""
        await self._database.run(lambda _: None)

    async def aclose(self) -> None:
        """Close the connection and end the thread.  Safe to call twice."""
        await self._database.aclose()

    async def create(self, name: str, role: Role, *, expires_at: datetime | None = None) -> NewToken:
        """Make a token.  Raises InvalidRequestError for a name that is not plain, an unknown role, a time gone by."""
        check_name(name, "the name of a token")
        if role not in ROLES:
            raise InvalidRequestError(f"no such role: {role!r}; there are {', '.join(ROLES)}")
        if expires_at is not None and expires_at <= self._now():
            raise InvalidRequestError("the token would have expired already")
        token_id = secrets.token_hex(6)
        text = f"pmt_{token_id}_{secrets.token_urlsafe(32)}"
        record = TokenRecord(
            id=token_id,
            name=name,
            role=role,
            created_at=_seconds(self._now()),
            last_used_at=None,
            expires_at=None if expires_at is None else _seconds(expires_at),
            revoked_at=None,
        )
        row = (record.id, _digest(text), record.name, record.role, record.created_at, record.expires_at)
        await self._database.run(
            lambda db: db.execute(
                "INSERT INTO tokens (id, hash, name, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)", row
            )
        )
        return NewToken(record=record, text=text)

    async def list_tokens(self) -> list[TokenRecord]:
        """All tokens, the revoked ones too, oldest first."""
        query = f"SELECT {_COLUMNS} FROM tokens ORDER BY created_at, id"  # noqa: S608 - our own constant
        return await self._database.run(lambda db: [_record(row) for row in db.execute(query)])

    async def revoke(self, token_id: str) -> TokenRecord:
        """Refuse the token from now on; idempotent.  Raises NotFoundError."""

        def work(db: sqlite3.Connection) -> TokenRecord:
            db.execute(
                "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (_seconds(self._now()), token_id),
            )
            row = db.execute(f"SELECT {_COLUMNS} FROM tokens WHERE id = ?", (token_id,)).fetchone()  # noqa: S608
            if row is None:
                raise NotFoundError("there is no token with this id: `podmentor token list` shows them")
            return _record(row)

        return await self._database.run(work)

    async def authenticate(self, text: str) -> Identity:
        """Who holds ``text``.  Raises UnauthorizedError."""
        if text.startswith(LOCAL_PREFIX):
            if self._local and hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._local):
                return Identity(user_id=LOCAL_OWNER, role="admin", local_owner=True)
            raise UnauthorizedError("the local token is not the one of this service: read its local-token file again")
        match = _FORM.fullmatch(text)
        if match is None:
            raise UnauthorizedError(_UNKNOWN)
        return await self._database.run(lambda db: self._check(db, match.group(1), text))

    def _check(self, db: sqlite3.Connection, token_id: str, text: str) -> Identity:
        row = db.execute(f"SELECT {_COLUMNS}, hash FROM tokens WHERE id = ?", (token_id,)).fetchone()  # noqa: S608
        stored = row[-1] if row else ""
        if not hmac.compare_digest(_digest(text), stored) or row is None:
            raise UnauthorizedError(_UNKNOWN)
        record = _record(row[:-1])
        now = self._now()
        if record.revoked_at is not None:
            raise UnauthorizedError("the token has been revoked")
        if record.expires_at is not None and parse(record.expires_at) <= now:
            raise UnauthorizedError("the token has expired")
        if record.last_used_at is None or now - parse(record.last_used_at) >= _USE_STEP:
            _note_use(db, token_id, _seconds(now))
        return Identity(user_id=record.name, role=record.role)


def _make_schema(db: sqlite3.Connection) -> None:
    db.execute(_SCHEMA)


def _note_use(db: sqlite3.Connection, token_id: str, now: str) -> None:
    """Best effort: a database that is busy or full must not lock everybody out."""
    db.execute("PRAGMA busy_timeout = 50")
    try:
        db.execute("UPDATE tokens SET last_used_at = ? WHERE id = ?", (now, token_id))
    except sqlite3.OperationalError as error:
        log.debug("the last use of token %s is not noted: %s", token_id, error)
    finally:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _seconds(moment: datetime) -> str:
    return rfc3339(moment, "seconds")


def _record(row: tuple[Any, ...]) -> TokenRecord:
    return TokenRecord(
        id=row[0],
        name=row[1],
        role=row[2],
        created_at=row[3],
        last_used_at=row[4],
        expires_at=row[5],
        revoked_at=row[6],
    )
