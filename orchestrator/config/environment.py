"""What the environment adds to podmentor.yaml: the place of the vault's master key, the collector of traces.

``process_environment`` is for those who hand a part of it on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from orchestrator.config.models import Config, Paths

log = logging.getLogger(__name__)
SERVICE_NAME: Final = "podmentor"
_PATH: Final = "/v1/traces"


def process_environment() -> dict[str, str]:
    """A copy of it.  It may hold secrets: pick what is needed, pass nothing on whole."""
    return dict(os.environ)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesTarget:
    """A collector.  Its headers (which may hold a key), certificates and compression are those of the variables
    ``OTEL_EXPORTER_OTLP_*``, which the exporter reads itself."""

    url: str
    service_name: str
    named_by: str
    """For messages: the key or the variable."""
    asked_of_us: bool
    """By podmentor's own configuration; a variable may be in the environment for the sake of other programs."""


def traces_target(config: Config, *, env: Mapping[str, str] | None = None) -> TracesTarget | None:
    """The collector; None: nobody wants traces.  A variable that is no URL of ours to use is named in the log."""
    env = os.environ if env is None else env
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    name = env.get("OTEL_SERVICE_NAME") or SERVICE_NAME
    if config.telemetry.otlp_endpoint is not None:
        url, by = config.telemetry.otlp_endpoint + _PATH, "telemetry.otlp_endpoint"
    elif env.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    elif whole := env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        url, by = whole, "$OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    elif base := env.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        url, by = base.rstrip("/") + _PATH, "$OTEL_EXPORTER_OTLP_ENDPOINT"
    else:
        return None
    asked_of_us = not by.startswith("$")
    parts = urlsplit(url)
    if not asked_of_us and (parts.scheme not in {"http", "https"} or not parts.hostname):
        log.warning("no traces are sent: %s is not a URL such as http://127.0.0.1:4318 (OTLP over HTTP)", by)
        return None
    return TracesTarget(url=url, service_name=name, named_by=by, asked_of_us=asked_of_us)
