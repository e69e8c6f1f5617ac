"""Every registered adapter, with every recording that is there, against every contract of the kit."""

from typing import cast

import pytest

from orchestrator.testing.conformance import (
    ADAPTER_CONTRACTS,
    RECORDING_CONTRACTS,
    Contract,
    Recording,
    Subject,
    load_all,
)
from tests.adapters.registered import RECORDINGS, adapters

ADAPTERS = adapters()
CASES = [(name, recording) for name in ADAPTERS for recording in load_all(RECORDINGS / name)]


def make(name: str) -> Subject:
    return cast("Subject", ADAPTERS[name]())


@pytest.mark.parametrize("contract", ADAPTER_CONTRACTS, ids=str)
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapter(name: str, contract: Contract[[Subject]]) -> None:
    contract(make(name))


@pytest.mark.parametrize("contract", RECORDING_CONTRACTS, ids=str)
@pytest.mark.parametrize(("name", "recording"), CASES, ids=[f"{name}/{recording.name}" for name, recording in CASES])
def test_recording(name: str, recording: Recording, contract: Contract[[Subject, Recording]]) -> None:
    contract(make(name), recording)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_has_recordings(name: str) -> None:
    assert any(adapter == name for adapter, _ in CASES)
