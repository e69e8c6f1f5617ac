"""Numbers in a dict."""

from __future__ import annotations

from orchestrator.contract.metrics import Instrument


class FakeMetrics:
    """Implements ``Metrics``: ``values`` by name and labels; of a histogram its number of values."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.measured: dict[str, list[float]] = {}

    def add(self, counter: Instrument, amount: float = 1, **labels: str) -> None:
        assert counter.kind == "counter"
        assert not counter.elsewhere
        key = _key(counter, labels)
        self.values[key] = self.values.get(key, 0) + amount

    def observe(self, histogram: Instrument, value: float, **labels: str) -> None:
        assert histogram.kind == "histogram"
        self.measured.setdefault(_key(histogram, labels), []).append(value)

    def put(self, instrument: Instrument, value: float | None, **labels: str) -> None:
        assert instrument.kind == "gauge" or instrument.elsewhere
        if value is None:
            self.values.pop(_key(instrument, labels), None)
        else:
            self.values[_key(instrument, labels)] = value

    def of(self, beginning: str) -> dict[str, float]:
        """Those whose name begins so, without ``podmentor_`` before it."""
        return {key: value for key, value in self.values.items() if key.startswith(beginning)}


def _key(instrument: Instrument, labels: dict[str, str]) -> str:
    assert set(labels) == set(instrument.labels), f"{instrument.name}: {labels}"
    shown = ",".join(f"{name}={labels[name]}" for name in instrument.labels)
    return instrument.name.removeprefix("podmentor_") + (f"{{{shown}}}" if shown else "")
