"""The instruments on prometheus-client, in a registry of our own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.contract.metrics import INSTRUMENTS, Instrument

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 3.0
"""What all probes of one scrape may take together."""
_Labels = tuple[str, ...]
Probe = Callable[[], Awaitable[None]]


class PrometheusMetrics:
    """Implements ``Metrics`` and ``MetricsPage``.

    Before each page the probes are asked to ``put`` what is kept elsewhere; one that fails or takes too long costs
    nobody the rest of the page.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._elsewhere = _Elsewhere()
        self._registry.register(self._elsewhere)
        ProcessCollector(registry=self._registry)  # memory, CPU time, open files, start time of the service
        self._counters = {
            one: Counter(one.name, one.meaning, one.labels, registry=self._registry)
            for one in INSTRUMENTS
            if one.kind == "counter" and not one.elsewhere
        }
        self._histograms = {
            one: Histogram(one.name, one.meaning, one.labels, buckets=one.buckets, registry=self._registry)
            for one in INSTRUMENTS
            if one.kind == "histogram"
        }
        self._probes: list[Probe] = []

    def before_page(self, probe: Probe) -> None:
        """Ask ``probe`` before each page."""
        self._probes.append(probe)

    def add(self, counter: Instrument, amount: float = 1, **labels: str) -> None:
        """Count.  Raises ValueError for labels that are not the counter's."""
        found = self._counters[counter]
        (found.labels(**labels) if counter.labels or labels else found).inc(amount)

    def observe(self, histogram: Instrument, value: float, **labels: str) -> None:
        """Measure.  Raises as ``add``."""
        found = self._histograms[histogram]
        (found.labels(**labels) if histogram.labels or labels else found).observe(value)

    def put(self, instrument: Instrument, value: float | None, **labels: str) -> None:
        """Set.  Raises as ``add``."""
        if set(labels) != set(instrument.labels):
            raise ValueError(f"{instrument.name} has the labels {instrument.labels}")
        self._elsewhere.put(instrument, tuple(labels[name] for name in instrument.labels), value)

    async def page(self) -> bytes:
        """Everything, as text."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                for failure in await asyncio.gather(*(probe() for probe in self._probes), return_exceptions=True):
                    if isinstance(failure, Exception):
                        log.warning("some numbers are not known now: %s", failure)
        except TimeoutError:
            log.warning("some numbers are not known now: they were not reported within %.0f s", PROBE_SECONDS)
        return await asyncio.to_thread(generate_latest, _Shown(self._registry))


class _Shown(Collector):
    """The registry's values without the times at which they began, which would double the number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class _Elsewhere(Collector):
    """Values that are not counted here but put as a whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Instrument, dict[_Labels, float]] = {}

    def put(self, instrument: Instrument, labels: _Labels, value: float | None) -> None:
        with self._lock:
            values = self._values.setdefault(instrument, {})
            if value is None:
                values.pop(labels, None)
            else:
                values[labels] = value

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            values = {one: dict(found) for one, found in self._values.items()}
        for one, found in values.items():
            family = (CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily)(
                one.name, one.meaning, labels=one.labels
            )
            for labels, value in found.items():
                family.add_metric(labels, value)
            yield family
