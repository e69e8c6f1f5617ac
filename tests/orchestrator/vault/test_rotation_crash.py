"""A rotation that is killed at any of its steps leaves a vault that opens: as before, or as after."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.vault import KeySource, MasterKey, Vault
from tests.orchestrator.vault.kit import SECRET, make_key, opened_vault, paths_in, place_of

ROOT = Path(__file__).parents[3]
USERS = [f"user{number}" for number in range(5)]
NAME = "external_agent/claude-code/api_key"


async def rotate_and_stop(paths: Paths, stop_at: str) -> None:
    """In the process that will be killed: say where it is, and never go on from there."""

    def step(name: str) -> None:
        if name == stop_at:
            print(name, flush=True)
            sys.stdin.read()

    async with Vault(paths.database, KeySource.find(place_of(paths))) as vault:
        await vault.rotate(MasterKey.new(), on_step=step)


@pytest.mark.parametrize("stop_at", ["staged", "sealed", "committed"])
async def test_killed_at_a_step(tmp_path: Path, stop_at: str) -> None:
    paths = paths_in(tmp_path)
    async with opened_vault(paths) as vault:
        for user in USERS:
            await vault.put(user, NAME, f"{SECRET}-{user}")
    old = make_key(paths)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        str(tmp_path),
        stop_at,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert (await process.stdout.readline()).decode().strip() == stop_at
            if stop_at == "committed":  # between commit and rename: another process reads and writes
                async with opened_vault(paths) as vault:
                    assert await vault.get(USERS[0], NAME) == f"{SECRET}-{USERS[0]}"
    finally:
        process.kill()
        await process.communicate()
    async with opened_vault(paths) as vault:
        assert [await vault.get(user, NAME) for user in USERS] == [f"{SECRET}-{user}" for user in USERS]
        assert (await vault.check_key() == old.key_id) is (stop_at != "committed")
        await vault.put("late", NAME, "put-after-the-crash")
        await vault.settle()
        assert sorted(path.name for path in paths.state_dir.glob("vault.key*")) == ["vault.key"]
        newest = MasterKey.new()
        assert await vault.rotate(newest) == len(USERS) + 1
    async with opened_vault(paths) as vault:
        assert await vault.check_key() == newest.key_id
        assert await vault.get("late", NAME) == "put-after-the-crash"
        assert await vault.unreadable() == []


@pytest.mark.parametrize("done", ["nothing", "old set aside"])
async def test_killed_between_the_renames(tmp_path: Path, done: str) -> None:
    paths = paths_in(tmp_path)
    async with opened_vault(paths) as vault:
        await vault.put("alice", NAME, SECRET)
        old, new = make_key(paths), MasterKey.new()
        await vault.rotate(new)
    # as a crash would leave it: the database has the new key, the files are not where they belong
    main = paths.vault_key
    main.rename(main.with_name("vault.key.new"))
    aside = main if done == "nothing" else main.with_name("vault.key.old")
    aside.write_text(old.to_text())
    aside.chmod(0o600)
    async with Vault(paths.database, KeySource.find(place_of(paths))) as vault:
        assert await vault.get("alice", NAME) == SECRET
        await vault.settle()
        assert await vault.get("alice", NAME) == SECRET
    assert sorted(path.name for path in paths.state_dir.glob("vault.key*")) == ["vault.key"]
    assert KeySource(place_of(paths)).current() == new


if __name__ == "__main__":
    asyncio.run(rotate_and_stop(paths_in(Path(sys.argv[1])), sys.argv[2]))
