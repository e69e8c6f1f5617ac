"""The conformance kit: what every adapter is held to, as numbered contracts.

``ADAPTER_CONTRACTS`` need the adapter alone, ``RECORDING_CONTRACTS`` one of its recordings too; each raises
AssertionError, with the reason, when it is broken.  With pytest::

    @pytest.mark.parametrize("contract", ADAPTER_CONTRACTS, ids=str)
    def test_adapter(contract): contract(MyAdapter())

    @pytest.mark.parametrize("recording", load_all(Path("recordings/mine")), ids=lambda r: r.name)
    @pytest.mark.parametrize("contract", RECORDING_CONTRACTS, ids=str)
    def test_recording(contract, recording): contract(MyAdapter(), recording)
"""

from __future__ import annotations

from importlib.metadata import entry_points

from orchestrator.contract.adapter import BaseAdapter
from orchestrator.testing.adapter_contracts import ADAPTER_CONTRACTS
from orchestrator.testing.kit import Contract, Subject
from orchestrator.testing.recording_contracts import RECORDING_CONTRACTS
from orchestrator.testing.recordings import Recording, load, load_all, play, write_golden

__all__ = [
    "ADAPTER_CONTRACTS",
    "RECORDING_CONTRACTS",
    "Contract",
    "Recording",
    "Subject",
    "installed_adapters",
    "load",
    "load_all",
    "play",
    "write_golden",
]


def installed_adapters() -> dict[str, type[BaseAdapter]]:
    """Every adapter of every installed distribution, by name."""
    return {point.name: point.load() for point in entry_points(group="podmentor.adapters")}
