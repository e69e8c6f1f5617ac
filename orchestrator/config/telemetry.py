"""Where traces go: the configuration first, then OpenTelemetry's own variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.config.models import Config

log = logging.getLogger(__name__)

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
