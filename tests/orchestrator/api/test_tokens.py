"""The life of a token, and what is kept of it."""

import hashlib
import re
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.api.identity import Identity
from orchestrator.api.tokens import TokenStore
from orchestrator.errors import InvalidRequestError, NotFoundError, StorageError, UnauthorizedError

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """At the start of 2026."""
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "state" / "podmentor.db"


@pytest.fixture
async def store(database: Path, clock: Clock) -> AsyncIterator[TokenStore]:
    """Open."""
    async with TokenStore(database, local_token="pml_local", now=clock) as opened:
        yield opened


async def test_a_token_proves_its_holder(store: TokenStore) -> None:
    new = await store.create("alice", "user")
    assert re.fullmatch(r"pmt_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", new.text)
    assert await store.authenticate(new.text) == Identity(user_id="alice", role="user")


async def test_every_role_is_told(store: TokenStore) -> None:
    for role in ("user", "service", "admin"):
        identity = await store.authenticate((await store.create("x", role)).text)
        assert (identity.role, identity.local_owner) == (role, False)
        assert identity.scope == (None if role == "admin" else "x")


async def test_only_a_hash_is_kept(store: TokenStore, database: Path) -> None:
    new = await store.create("alice", "user")
    secret = new.text[-20:].encode()
    stored = b"".join(path.read_bytes() for path in database.parent.iterdir())
    assert secret not in stored
    assert hashlib.sha256(new.text.encode()).hexdigest().encode() in stored
    assert new.text not in repr(new)


async def test_the_database_is_for_its_owner_only(store: TokenStore, database: Path) -> None:
    await store.create("alice", "user")
    assert [path.name for path in database.parent.iterdir() if path.stat().st_mode & 0o077] == []
    assert database.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    ["", "pmt_", "x", "pmt_000000000000_" + "A" * 43, "pml_", "pml_other", "pmt_zz", "pml_\u00e4\udcff", "pmt_' OR 1"],
)
async def test_what_is_no_token_is_refused(store: TokenStore, text: str) -> None:
    await store.create("alice", "user")
    with pytest.raises(UnauthorizedError):
        await store.authenticate(text)


async def test_one_wrong_character_is_refused(store: TokenStore) -> None:
    text = (await store.create("alice", "user")).text
    for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), text + "A", text[:-1], text + "\n"):
        with pytest.raises(UnauthorizedError):
            await store.authenticate(wrong)


async def test_a_token_ends_when_it_was_to(store: TokenStore, clock: Clock) -> None:
    new = await store.create("alice", "user", expires_at=START + timedelta(hours=1))
    clock.now += timedelta(minutes=59)
    await store.authenticate(new.text)
    clock.now += timedelta(minutes=1)
    with pytest.raises(UnauthorizedError, match="expired"):
        await store.authenticate(new.text)


async def test_a_revoked_token_stays_listed(store: TokenStore, clock: Clock) -> None:
    new = await store.create("alice", "user")
    other = await store.create("alice", "user")
    clock.now += timedelta(minutes=5)
    first = await store.revoke(new.record.id)
    clock.now += timedelta(minutes=5)
    assert await store.revoke(new.record.id) == first
    assert first.revoked_at == "2026-01-01T00:05:00Z"
    with pytest.raises(UnauthorizedError, match="revoked"):
        await store.authenticate(new.text)
    await store.authenticate(other.text)
    assert {record.id for record in await store.list_tokens()} == {new.record.id, other.record.id}
    with pytest.raises(NotFoundError):
        await store.revoke("nothing")


async def test_another_process_revokes(store: TokenStore, database: Path) -> None:
    new = await store.create("alice", "user")
    await store.authenticate(new.text)
    async with TokenStore(database) as second:
        await second.revoke(new.record.id)
    with pytest.raises(UnauthorizedError):
        await store.authenticate(new.text)


async def test_the_last_use_is_noted_to_the_minute(store: TokenStore, clock: Clock) -> None:
    new = await store.create("alice", "user")
    seen = []
    for seconds in (10, 59, 1, 100):
        clock.now += timedelta(seconds=seconds)
        await store.authenticate(new.text)
        seen.append((await store.list_tokens())[0].last_used_at)
    assert seen == [
        "2026-01-01T00:00:10Z",
        "2026-01-01T00:00:10Z",
        "2026-01-01T00:01:10Z",
        "2026-01-01T00:02:50Z",
    ]


async def test_a_database_that_another_writes_to_locks_nobody_out(store: TokenStore, database: Path) -> None:
    new = await store.create("alice", "user")
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert (await store.authenticate(new.text)).user_id == "alice"
    assert (await store.list_tokens())[0].last_used_at is None
    writer.execute("COMMIT")
    writer.close()
    await store.authenticate(new.text)
    assert (await store.list_tokens())[0].last_used_at is not None


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65, "ä", "a\n", "local"])
async def test_a_name_must_be_plain_and_not_the_local_owners(store: TokenStore, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await store.create(name, "user")


async def test_a_role_must_exist_and_an_end_lie_ahead(store: TokenStore) -> None:
    with pytest.raises(InvalidRequestError, match="role"):
        await store.create("alice", "root")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="expired"):
        await store.create("alice", "user", expires_at=START)
    assert await store.list_tokens() == []


async def test_the_local_token_is_the_local_owner(store: TokenStore) -> None:
    identity = await store.authenticate("pml_local")
    assert identity == Identity(user_id="local", role="admin", local_owner=True)
    assert identity.scope is None


async def test_without_a_local_token_nobody_is_the_local_owner(database: Path) -> None:
    async with TokenStore(database) as store:
        for text in ("pml_", "pml_local", "pml_None"):
            with pytest.raises(UnauthorizedError):
                await store.authenticate(text)


async def test_tokens_outlive_the_store_and_other_tables_are_left_alone(store: TokenStore, database: Path) -> None:
    new = await store.create("alice", "user")
    await store.aclose()
    await store.aclose()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE runs (x)")
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    async with TokenStore(database) as again:
        assert (await again.authenticate(new.text)).user_id == "alice"
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    connection.close()


async def test_a_database_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "podmentor.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match="is damaged"):
        async with TokenStore(tmp_path / "podmentor.db"):
            raise AssertionError("opened")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        async with TokenStore(tmp_path / "file" / "podmentor.db"):
            raise AssertionError("opened")
