"""A vault with its key in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.config.environment import VaultPlace, vault_place
from orchestrator.config.models import Config, Paths
from orchestrator.vault import KeySource, MasterKey, Vault
from orchestrator.vault.master import write_key

SECRET = "sk-own-Zm9vYmFyYmF6-0123456789"


def paths_in(root: Path) -> Paths:
    return Paths(state_dir=root / "state", runtime_dir=root / "run")


def place_of(paths: Paths, **env: str) -> VaultPlace:
    return vault_place(Config(), paths, env=env)


def make_key(paths: Paths) -> MasterKey:
    """The key file, if there is none yet; the key in it."""
    if not paths.vault_key.exists():
        write_key(paths.vault_key, MasterKey.new())
    return KeySource(place_of(paths)).current()


@asynccontextmanager
async def opened_vault(paths: Paths) -> AsyncIterator[Vault]:
    await asyncio.to_thread(make_key, paths)
    async with Vault(paths.database, await asyncio.to_thread(KeySource.find, place_of(paths))) as vault:
        yield vault


def raw_bytes(root: Path) -> bytes:
    """Everything in the files below ``root``."""
    return b"\0".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())
