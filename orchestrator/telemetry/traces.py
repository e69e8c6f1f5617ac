"""Traces, if anybody wants them."""

from __future__ import annotations

import importlib
import logging
from typing import Final

from orchestrator.config.environment import TracesTarget
from orchestrator.contract.metrics import NO_METRICS, Metrics
from orchestrator.contract.traces import NO_TRACES, Traces
from orchestrator.errors import ConfigError

log = logging.getLogger(__name__)
_MODULE: Final = "orchestrator.telemetry.otlp"


def open_traces(target: TracesTarget | None, *, version: str, instance: str, metrics: Metrics = NO_METRICS) -> Traces:
    """Traces for ``target``; without one nothing is imported and no thread is started.  Blocking.

    When OpenTelemetry is not installed: ConfigError if the configuration wants it, a line in the log if only a variable
    does.
    """
    if target is None:
        return NO_TRACES
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        message = (
            f"{target.named_by} asks for traces, but {error.name or 'OpenTelemetry'} is not installed: "
            "pip install 'podmentor[otel]', or unset it"
        )
        if target.asked_of_us:
            raise ConfigError(message) from error
        log.warning("no traces are sent: %s", message)
        return NO_TRACES
    traces: Traces = module.OtlpTraces(target, version=version, instance=instance, metrics=metrics)
    return traces
