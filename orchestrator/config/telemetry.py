"""Where traces go: the configuration first, then OpenTelemetry's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.config.models import Config
from orchestrator.errors import ConfigError

SERVICE_NAME: Final = "podmentor"
_PATH: Final = "/v1/traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesTarget:
    """A collector.  Its headers (which may hold a key), certificates and compression are those of the variables
    ``OTEL_EXPORTER_OTLP_*``, which the exporter reads itself."""

    url: str
    service_name: str
    named_by: str
    """For messages: the key or the variable."""


def traces_target(config: Config, *, env: Mapping[str, str] | None = None) -> TracesTarget | None:
    """The collector; None: nobody wants traces.  Raises ConfigError for a variable that is no URL."""
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
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{by} must be a URL such as http://127.0.0.1:4318 (OTLP over HTTP)")
    return TracesTarget(url=url, service_name=name, named_by=by)
