"""Numbers for Prometheus, and traces for OpenTelemetry collectors."""

from orchestrator.telemetry.prometheus import PrometheusMetrics
from orchestrator.telemetry.traces import open_traces

__all__ = ["PrometheusMetrics", "open_traces"]
