"""C18: the encrypted store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from orchestrator.config.models import Paths
from orchestrator.errors import ConflictError, SecretUnreadableError, StorageError, VaultUnavailableError
from orchestrator.vault import KeySource, MasterKey, Vault
from orchestrator.vault.master import write_key
from tests.orchestrator.vault.kit import SECRET, make_key, opened_vault, paths_in, place_of, raw_bytes

NAME = "external_agent/claude-code/api_key"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_in(tmp_path)


@pytest.fixture
async def vault(paths: Paths) -> AsyncIterator[Vault]:
    async with opened_vault(paths) as vault:
        with blockbuster_ctx(["orchestrator"]):
            yield vault


def tamper(paths: Paths, statement: str, *values: object) -> None:
    """As somebody would who can write the file."""
    connection = sqlite3.connect(paths.database)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


async def test_put_get_list_delete(vault: Vault) -> None:
    info = await vault.put("alice", NAME, SECRET)
    assert (info.user_id, info.name, info.last_used_at) == ("alice", NAME, None)
    assert await vault.get("alice", NAME) == SECRET
    assert await vault.get("bob", NAME) is None
    await vault.put("bob", "config/x", "other")
    assert [one.user_id for one in await vault.list_secrets()] == ["alice", "bob"]
    assert [one.name for one in await vault.list_secrets(prefix="config/")] == ["config/x"]
    assert await vault.list_secrets(user_id="alice") == [info]
    assert await vault.delete("alice", NAME)
    assert not await vault.delete("alice", NAME)
    assert await vault.get("alice", NAME) is None


async def test_a_new_value_takes_the_place_of_the_old_one(vault: Vault, paths: Paths) -> None:
    first = await vault.put("alice", NAME, SECRET)
    second = await vault.put("alice", NAME, SECRET + "2")
    assert first.fingerprint != second.fingerprint
    assert first.created_at == second.created_at
    assert await vault.get("alice", NAME) == SECRET + "2"


async def test_the_file_holds_nothing_that_could_be_read(vault: Vault, paths: Paths) -> None:
    info = await vault.put("alice", NAME, SECRET)
    assert SECRET.encode() not in raw_bytes(paths.state_dir)
    assert SECRET[:12].encode() not in raw_bytes(paths.state_dir)
    assert SECRET not in repr(info)
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths.state_dir.iterdir())


async def test_uses_are_noted_to_the_minute(paths: Paths) -> None:
    moment = [datetime(2030, 1, 1, tzinfo=UTC)]
    make_key(paths)
    async with Vault(paths.database, KeySource.find(place_of(paths)), now=lambda: moment[0]) as vault:
        await vault.put("alice", NAME, SECRET)
        await vault.touch("alice", NAME)
        moment[0] += timedelta(seconds=30)
        await vault.touch("alice", NAME)
        assert [one.last_used_at for one in await vault.list_secrets()] == ["2030-01-01T00:00:00Z"]
        moment[0] += timedelta(seconds=30)
        await vault.touch("alice", NAME)
        assert [one.last_used_at for one in await vault.list_secrets()] == ["2030-01-01T00:01:00Z"]
        await vault.touch("nobody", NAME)


@pytest.mark.parametrize(
    "change",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[:20],
        lambda blob: b"",
        lambda blob: b"PMV",
        lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]),
        lambda blob: b"PMV\2" + blob[4:],
        lambda blob: blob[:4] + bytes(8) + blob[12:],
    ],
)
async def test_a_broken_record_is_a_clear_error_and_the_others_are_unharmed(
    vault: Vault, paths: Paths, change: Callable[[bytes], bytes]
) -> None:
    await vault.put("alice", NAME, SECRET)
    await vault.put("bob", NAME, "bobs-own-key")
    connection = sqlite3.connect(paths.database)
    [[blob]] = connection.execute("SELECT sealed FROM secrets WHERE user_id = 'alice'")
    connection.close()
    tamper(paths, "UPDATE secrets SET sealed = ? WHERE user_id = 'alice'", change(blob))
    with pytest.raises(SecretUnreadableError, match="set it again, or delete it") as caught:
        await vault.get("alice", NAME)
    assert SECRET not in str(caught.value) + repr(caught.value.details)
    assert await vault.get("bob", NAME) == "bobs-own-key"
    assert [error.details["user_id"] for error in await vault.unreadable()] == ["alice"]
    assert len(await vault.list_secrets()) == 2
    with pytest.raises(ConflictError, match="nothing was changed"):
        await vault.rotate(MasterKey.new())
    assert await vault.get("bob", NAME) == "bobs-own-key"
    await vault.put("alice", NAME, SECRET)
    assert await vault.get("alice", NAME) == SECRET


async def test_records_cannot_be_swapped(vault: Vault, paths: Paths) -> None:
    await vault.put("alice", NAME, SECRET)
    await vault.put("bob", NAME, "bobs-own-key")
    await vault.put("bob", "external_agent/codex/api_key", "bobs-codex")
    tamper(
        paths,
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE user_id = 'alice') WHERE user_id = 'bob'"
        " AND name = ?",
        NAME,
    )
    with pytest.raises(SecretUnreadableError):
        await vault.get("bob", NAME)
    tamper(paths, "UPDATE secrets SET user_id = 'eve' WHERE user_id = 'alice'")
    with pytest.raises(SecretUnreadableError):
        await vault.get("eve", NAME)
    tamper(paths, "UPDATE secrets SET name = 'external_agent/opencode/api_key' WHERE name LIKE '%codex%'")
    with pytest.raises(SecretUnreadableError):
        await vault.get("bob", "external_agent/opencode/api_key")


async def test_a_wrong_master_key_opens_and_stores_nothing_and_loses_nothing(paths: Paths) -> None:
    async with opened_vault(paths) as vault:
        await vault.put("alice", NAME, SECRET)
    right = paths.vault_key.rename(paths.state_dir / "right")
    write_key(paths.vault_key, MasterKey.new())
    async with opened_vault(paths) as vault:
        with pytest.raises(SecretUnreadableError, match="sealed with the master key"):
            await vault.get("alice", NAME)
        with pytest.raises(VaultUnavailableError, match="bring the right key back"):
            await vault.put("bob", NAME, "x" * 20)
        with pytest.raises(VaultUnavailableError):
            await vault.rotate(MasterKey.new())
        assert [one.user_id for one in await vault.list_secrets()] == ["alice"]
    right.rename(paths.vault_key)
    async with opened_vault(paths) as vault:
        assert await vault.get("alice", NAME) == SECRET


async def test_without_a_key_lists_and_deletes_only(paths: Paths) -> None:
    async with opened_vault(paths) as vault:
        await vault.put("alice", NAME, SECRET)
    async with Vault(paths.database, None) as vault:
        for attempt in (vault.get("alice", NAME), vault.put("alice", NAME, "y" * 20), vault.check_key()):
            with pytest.raises(VaultUnavailableError, match="podmentor vault init"):
                await attempt
        assert len(await vault.list_secrets()) == 1
        assert await vault.delete("alice", NAME)


async def test_a_file_that_is_no_database_is_a_storage_error(paths: Paths) -> None:
    make_key(paths)
    paths.database.write_bytes(b"no database at all, but long enough to be looked at" * 40)
    async with opened_vault(paths) as vault:
        with pytest.raises(StorageError):
            await vault.get("alice", NAME)


async def test_rotation_seals_everything_anew(vault: Vault, paths: Paths) -> None:
    names = [f"external_agent/b{number}/api_key" for number in range(20)]
    before = [await vault.put("alice", name, f"{SECRET}-{name}") for name in names]
    old = make_key(paths)
    new, steps = MasterKey.new(), list[str]()
    assert await vault.rotate(new, on_step=steps.append) == 20
    assert steps == ["staged", "sealed", "committed", "settled"]
    assert await asyncio.to_thread(make_key, paths) == new
    assert sorted(path.name for path in paths.state_dir.glob("vault.key*")) == ["vault.key"]
    assert [await vault.get("alice", name) for name in names] == [f"{SECRET}-{name}" for name in names]
    after = await vault.list_secrets()
    assert {one.fingerprint for one in after}.isdisjoint({one.fingerprint for one in before})
    assert {one.name: one.updated_at for one in after} == {one.name: one.updated_at for one in before}
    assert bytes.fromhex(old.key_id) not in raw_bytes(paths.state_dir), "nothing sealed with the old key is left"


async def test_a_service_that_runs_sees_the_rotation_of_another_process(vault: Vault, paths: Paths) -> None:
    await vault.put("alice", NAME, SECRET)
    async with opened_vault(paths) as command:
        await command.rotate(MasterKey.new())
    assert await vault.get("alice", NAME) == SECRET
    await vault.put("bob", NAME, "put-after-the-rotation")
    async with opened_vault(paths) as fresh:
        assert await fresh.get("bob", NAME) == "put-after-the-rotation"


@pytest.mark.parametrize("at", ["staged", "sealed"])
async def test_a_rotation_that_fails_before_its_end_has_changed_nothing(vault: Vault, paths: Paths, at: str) -> None:
    await vault.put("alice", NAME, SECRET)
    old = make_key(paths)

    def full(step: str) -> None:
        if step == at:
            raise StorageError("no space left")

    with pytest.raises(StorageError):
        await vault.rotate(MasterKey.new(), on_step=full)
    assert await vault.get("alice", NAME) == SECRET
    assert await vault.check_key() == old.key_id
    await vault.settle()
    assert sorted(path.name for path in paths.state_dir.glob("vault.key*")) == ["vault.key"]
    new = MasterKey.new()
    await vault.rotate(new)
    assert await vault.check_key() == new.key_id


async def test_rotation_from_one_variable_to_the_next(paths: Paths) -> None:
    first, second = MasterKey.new(), MasterKey.new()
    env = {"PODMENTOR_VAULT_KEY": first.to_text(), "PODMENTOR_VAULT_KEY_NEXT": second.to_text()}
    async with Vault(paths.database, KeySource.find(place_of(paths, **env))) as vault:
        await vault.put("alice", NAME, SECRET)
        await vault.rotate(second)
        assert await vault.get("alice", NAME) == SECRET
    only_new = place_of(paths, PODMENTOR_VAULT_KEY=second.to_text())
    async with Vault(paths.database, KeySource.find(only_new)) as vault:
        assert await vault.get("alice", NAME) == SECRET
    assert not list(paths.state_dir.glob("vault.key*"))
