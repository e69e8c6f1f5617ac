"""Where the vault's master key comes from, as configuration and environment say."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.config.models import Config, Paths


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultPlace:
    """Where to look for the master key.  Nothing has been looked at but the environment."""

    source: Literal["file", "environment"]
    key_file: Path
    required: bool
    """The configuration names the place, so that a key that is not there is an error and no "no vault"."""
    variable: str
    value: str | None = field(default=None, repr=False)
    next_value: str | None = field(default=None, repr=False)
    """``<variable>_NEXT``: the key that a rotation goes to, or has just gone to."""

    @property
    def next_variable(self) -> str:
        """Where the key after this one is given."""
        return f"{self.variable}_NEXT"

    def __str__(self) -> str:
        return str(self.key_file) if self.source == "file" else f"${self.variable}"


def vault_place(config: Config, paths: Paths, *, env: Mapping[str, str] | None = None) -> VaultPlace:
    """The first of: ``vault.key_file``; the variable ``vault.key_env``, when set; ``<state>/vault.key``."""
    env = os.environ if env is None else env
    named, variable = config.vault.key_file, config.vault.key_env
    value = env.get(variable) or None
    from_env = named is None and value is not None
    return VaultPlace(
        source="environment" if from_env else "file",
        key_file=named or paths.vault_key,
        required=named is not None,
        variable=variable,
        value=value if from_env else None,
        next_value=(env.get(f"{variable}_NEXT") or None) if from_env else None,
    )
