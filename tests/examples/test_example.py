"""A backend from outside: nothing in this repository knows of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from images.build import PodmanImageBuilder
from images.catalogue import installed_recipes
from orchestrator.registry import ADAPTER_REGISTRY, load_adapters
from orchestrator.testing.conformance import ADAPTER_CONTRACTS, RECORDING_CONTRACTS, load_all
from tests.examples.conftest import EXAMPLE


def test_its_adapter_keeps_every_contract_of_the_kit(installed: Path) -> None:
    adapter = load_adapters(["example"])["example"]
    assert type(adapter).__module__ == "podmentor_example.adapter"
    for contract in ADAPTER_CONTRACTS:
        contract(adapter)
    recordings = load_all(EXAMPLE / "recordings")
    assert recordings
    for recording in recordings:
        for check in RECORDING_CONTRACTS:
            check(adapter, recording)


def test_its_recipe_is_found_without_running_any_of_its_code(installed: Path, tmp_path: Path) -> None:
    recipes = installed_recipes()
    assert recipes == {"example": installed / "podmentor_example" / "recipe"}
    assert "podmentor_example" not in sys.modules
    builder = PodmanImageBuilder(state_dir=tmp_path, extra_recipes=recipes)
    assert "example" in builder.backends()
    assert builder.wanted(["example"])["example"].startswith("localhost/podmentor/example:1.0.0-")


def test_without_the_package_there_is_no_such_backend() -> None:
    assert "example" not in ADAPTER_REGISTRY
    assert installed_recipes() == {}


@pytest.mark.parametrize("part", ["adapter.py", "recipe/Containerfile", "recipe/cli-version", "recipe/example-agent"])
def test_all_its_parts_are_in_the_package(installed: Path, part: str) -> None:
    assert (installed / "podmentor_example" / part).read_bytes() == (EXAMPLE / "podmentor_example" / part).read_bytes()
