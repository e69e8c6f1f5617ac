"""The vault: secrets encrypted at rest, each bound to its owner and name, under one master key."""

from orchestrator.vault.admin import CONFIG_USER, VaultAdmin, config_secret_name
from orchestrator.vault.master import KeySource
from orchestrator.vault.sealed import MasterKey
from orchestrator.vault.store import Vault

__all__ = ["CONFIG_USER", "KeySource", "MasterKey", "Vault", "VaultAdmin", "config_secret_name"]
