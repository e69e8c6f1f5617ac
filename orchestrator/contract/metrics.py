"""What is counted and measured: every instrument that there is, and how the parts of the service use them.

No label has a value that a user, an agent or a model chooses: never a user id, a host or a run id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG_SECONDS: Final = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric, named as Prometheus shows it (a counter's name ends in ``_total``)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    elsewhere: bool = False
    """Counted in another process, which reports its total (``put``)."""


def _counter(name: str, meaning: str, *labels: str) -> Instrument:
    return Instrument(f"podmentor_{name}_total", "counter", meaning, labels)


def _reported(name: str, meaning: str, *labels: str) -> Instrument:
    return Instrument(f"podmentor_{name}_total", "counter", meaning, labels, elsewhere=True)


def _gauge(name: str, meaning: str, *labels: str) -> Instrument:
    return Instrument(f"podmentor_{name}", "gauge", meaning, labels)


def _histogram(name: str, meaning: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Instrument:
    return Instrument(f"podmentor_{name}", "histogram", meaning, labels, buckets)


BUILD: Final = _gauge("build_info", "1, with the version as a label", "version")
READY: Final = _gauge("ready", "1 while runs are taken")
RUNS: Final = _gauge("runs", "Runs that have not ended; state queued, starting or running", "state")
RUNS_ENDED: Final = _counter(
    "runs_ended",
    "Runs that have ended; reason is that of the error, empty when completed",
    "backend",
    "outcome",
    "reason",
)
QUEUE_SECONDS: Final = _histogram(
    "queue_wait_seconds", "From accepted to admitted", "backend", buckets=(0.1, *_LONG_SECONDS)
)
START_SECONDS: Final = _histogram("start_seconds", "From admitted to the first output", "backend", buckets=_SECONDS)
RUN_SECONDS: Final = _histogram("run_seconds", "From admitted to the end", "backend", "outcome", buckets=_LONG_SECONDS)
TOKENS: Final = _counter("tokens", "Tokens of ended runs, as far as their CLIs tell", "backend", "kind")
OUTPUT_BYTES: Final = _counter("output_bytes", "What the CLIs of ended runs have printed", "backend")
LIMITS: Final = _counter("limit_hits", "Runs that a limit has ended", "limit")
EVENTS: Final = _counter("events", "Events that were journalled", "kind", "source")
APPEND_SECONDS: Final = _histogram("journal_append_seconds", "One append to the journal, waiting included")
EGRESS_ATTEMPTS: Final = _counter("egress_attempts", "What runs tried through the egress proxy", "verdict")
EGRESS_BYTES: Final = _counter("egress_bytes", "Through the egress proxy, of ended connections", "direction")
PODMAN_SECONDS: Final = _histogram("podman_call_seconds", "One attempt of a call to Podman", "call")
PODMAN_ERRORS: Final = _counter("podman_errors", "Attempts that failed, by the error's code", "call", "code")
PODMAN_RETRIES: Final = _counter("podman_retries", "Attempts that were begun again")
AUDIT_LINES: Final = _counter("audit_lines", "Lines written to the audit log")
AUDIT_FAILURES: Final = _counter("audit_failures", "Lines that could not be written")
RELAY_UP: Final = _gauge("relay_up", "1 when the relay has answered; without it the relay's other numbers are absent")
RELAY_OPEN: Final = _gauge("relay_open_connections", "Connections of runs to the relay now", "via")
RELAY_CONNECTIONS: Final = _reported("relay_connections", "Since the relay's start", "via")
RELAY_REQUESTS: Final = _reported("relay_requests", "Requests passed on to the provider, since the relay's start")
RELAY_REFUSALS: Final = _reported("relay_refusals", "Refused by the gateway or the proxy, since its start", "via")
RELAY_FAILURES: Final = _reported("relay_failures", "Host unreachable or broken off, since the relay's start", "via")
RELAY_BYTES: Final = _reported("relay_bytes", "Since the relay's start", "via", "direction")
TRACES_DROPPED: Final = _counter("trace_runs_dropped", "Runs whose trace could not be sent")

INSTRUMENTS: Final[tuple[Instrument, ...]] = (
    BUILD,
    READY,
    RUNS,
    RUNS_ENDED,
    QUEUE_SECONDS,
    START_SECONDS,
    RUN_SECONDS,
    TOKENS,
    OUTPUT_BYTES,
    LIMITS,
    EVENTS,
    APPEND_SECONDS,
    EGRESS_ATTEMPTS,
    EGRESS_BYTES,
    PODMAN_SECONDS,
    PODMAN_ERRORS,
    PODMAN_RETRIES,
    AUDIT_LINES,
    AUDIT_FAILURES,
    RELAY_UP,
    RELAY_OPEN,
    RELAY_CONNECTIONS,
    RELAY_REQUESTS,
    RELAY_REFUSALS,
    RELAY_FAILURES,
    RELAY_BYTES,
    TRACES_DROPPED,
)
"""All of them (docs/observability.md has the same table)."""


class Metrics(Protocol):
    """Where numbers go.  Nothing here blocks or raises, but for labels that are not the instrument's (ValueError).

    May be used from any thread.
    """

    def add(self, counter: Instrument, amount: float = 1, **labels: str) -> None:
        """Count."""
        ...

    def observe(self, histogram: Instrument, value: float, **labels: str) -> None:
        """Measure."""
        ...

    def put(self, instrument: Instrument, value: float | None, **labels: str) -> None:
        """The value of a gauge, or of a counter that is kept elsewhere; None: it is not known now."""
        ...


class MetricsPage(Protocol):
    """What a scrape gets."""

    async def page(self) -> bytes:
        """Everything, in Prometheus's text format 0.0.4."""
        ...


class NoMetrics:
    """Keeps nothing; implements ``Metrics``."""

    def add(self, counter: Instrument, amount: float = 1, **labels: str) -> None:
        """Nothing."""

    def observe(self, histogram: Instrument, value: float, **labels: str) -> None:
        """Nothing."""

    def put(self, instrument: Instrument, value: float | None, **labels: str) -> None:
        """Nothing."""


NO_METRICS: Final = NoMetrics()
