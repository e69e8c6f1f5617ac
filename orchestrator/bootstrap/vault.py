"""The part of the composition root that a command needs which touches credentials and starts no service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.audit import AuditLog
from orchestrator.config import placeholders
from orchestrator.config.environment import vault_place
from orchestrator.config.models import Config, Paths
from orchestrator.contract.credentials import UserKeys
from orchestrator.credentials import ByoKey, CredentialChain, Homes, OwnKeys, Subscription, TechnicalUser
from orchestrator.errors import ConfigError, VaultUnavailableError
from orchestrator.registry import load_adapters
from orchestrator.vault import KeySource, MasterKey, Vault, VaultAdmin

__all__ = [
    "VaultAdmin",
    "credential_chain",
    "enabled_backends",
    "explain_credentials",
    "new_master_key",
    "open_vault",
    "own_keys",
    "vault_admin",
    "with_secrets",
]

log = logging.getLogger(__name__)


def enabled_backends(config: Config) -> list[str]:
    """Those that runs may name."""
    agents = config.external_agent
    return [name for name, backend in agents.backends.items() if backend.enabled] if agents.enabled else []


def credential_chain(config: Config, paths: Paths, vault: Vault | None) -> CredentialChain:
    """Every place where a credential may be."""

    def has_login(backend: str) -> bool:
        try:
            adapter = load_adapters([backend])[backend]
        except ConfigError:
            return False
        own_command = config.external_agent.backends[backend].login_command
        return adapter.supports_byo_subscription and (own_command or adapter.login_argv()) is not None

    subscription = Subscription(Homes(paths.plugin_storage), has_login=has_login)
    return CredentialChain([subscription, ByoKey(vault), TechnicalUser()], config)


@asynccontextmanager
async def open_vault(config: Config, paths: Paths) -> AsyncIterator[Vault | None]:
    """The vault; None: none is configured.  Raises VaultUnavailableError when its key cannot be used."""
    keys = await asyncio.to_thread(KeySource.find, vault_place(config, paths))
    async with Vault(paths.database, keys) as vault:
        if keys is None:
            if stored := await vault.list_secrets():
                log.warning("%d secrets are stored, but no vault is configured: they are not used", len(stored))
            yield None
            return
        await vault.settle()
        await asyncio.to_thread(keys.current)
        try:
            await vault.check_key()
        except VaultUnavailableError as error:
            log.error("users' own keys cannot be used: %s", error.message)  # noqa: TRY400 - the message says all
        yield vault


@asynccontextmanager
async def vault_admin(config: Config, paths: Paths, *, actor: str) -> AsyncIterator[VaultAdmin]:
    """What the operator does with the vault; works beside a running service.  ``actor``: for the audit log."""
    place = vault_place(config, paths)
    keys = await asyncio.to_thread(KeySource.find, place)
    async with Vault(paths.database, keys) as vault:
        yield VaultAdmin(place=place, vault=vault, audit=AuditLog(paths.audit_log), actor=actor)


def new_master_key() -> str:
    """A key for a variable; it is kept nowhere."""
    return MasterKey.new().to_text()


async def with_secrets(config: Config, paths: Paths) -> Config:
    """The configuration with its ``${secret:NAME}`` resolved.  Raises ConfigError."""
    if not (names := placeholders.names_in(config)):
        return config
    async with vault_admin(config, paths, actor="service") as admin:
        return placeholders.fill(config, await admin.values(names))


@asynccontextmanager
async def own_keys(config: Config, paths: Paths) -> AsyncIterator[UserKeys]:
    """Users' own keys without a running service; one that runs sees every change at once."""
    async with open_vault(config, paths) as vault:
        yield OwnKeys(vault, AuditLog(paths.audit_log), enabled_backends(config))


async def explain_credentials(config: Config, paths: Paths, *, user_id: str, backend: str) -> list[dict[str, Any]]:
    """Which credential a run of this user would use, and why, without a running service."""
    config = await with_secrets(config, paths)
    async with open_vault(config, paths) as vault:
        return await credential_chain(config, paths, vault).explain(user_id=user_id, backend=backend)
