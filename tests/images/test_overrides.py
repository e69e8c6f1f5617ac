"""Versions that were chosen on this machine, in place of the shipped ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from images.catalogue import Catalogue, backend_recipe, load_catalogue
from images.overrides import Overrides
from orchestrator.errors import ImageBuildError

NAME = "acme"


def files(version: str) -> dict[str, bytes]:
    return {
        "Containerfile": b"ARG BASE\nFROM ${BASE}\n",
        "package.json": json.dumps({"dependencies": {"acme-cli": version}}).encode(),
        "package-lock.json": json.dumps({"packages": {"node_modules/acme-cli": {"version": version}}}).encode(),
    }


def catalogue(version: str = "1.0.0", **more: bytes) -> Catalogue:
    recipe = backend_recipe(NAME, Path("/shipped/acme"), {**files(version), **more})
    return replace(load_catalogue(), backends={NAME: recipe})


def test_a_candidate_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    overrides, shipped = Overrides(tmp_path), catalogue()
    assert overrides.with_candidate(shipped, NAME) is None
    overrides.write_candidate(shipped.backends[NAME], files("2.0.0"))
    tried = overrides.with_candidate(shipped, NAME)
    assert tried is not None
    assert tried.backends[NAME].version == "2.0.0"
    assert overrides.applied(shipped).backends[NAME].version == "1.0.0"
    overrides.drop_candidate(NAME)
    assert overrides.with_candidate(shipped, NAME) is None
    overrides.drop_candidate(NAME)


def test_an_adopted_version_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    overrides, shipped = Overrides(tmp_path), catalogue()
    overrides.write_candidate(shipped.backends[NAME], files("2.0.0"))
    overrides.adopt(shipped.backends[NAME], "2.0.0")
    assert overrides.holds(NAME)
    assert overrides.with_candidate(shipped, NAME) is None
    recipe = overrides.applied(shipped).backends[NAME]
    assert recipe.version == "2.0.0"
    # What is not the version stays podmentor's own.
    newer = catalogue(Containerfile=b"ARG BASE\nFROM ${BASE}\nRUN true\n")
    assert overrides.applied(newer).backends[NAME].files["Containerfile"].endswith(b"RUN true\n")


def test_the_way_back_to_the_shipped_version_leaves_nothing(tmp_path: Path) -> None:
    overrides, shipped = Overrides(tmp_path), catalogue()
    for version in ("2.0.0", "1.0.0"):
        overrides.write_candidate(shipped.backends[NAME], files(version))
        overrides.adopt(shipped.backends[NAME], version)
    assert not overrides.holds(NAME)
    assert overrides.applied(shipped) == shipped
    assert list((tmp_path / "recipes").iterdir()) == []
    assert list((tmp_path / "candidates").iterdir()) == []


def test_a_podmentor_with_another_version_of_its_own_counts_again(tmp_path: Path) -> None:
    overrides, shipped = Overrides(tmp_path), catalogue()
    overrides.write_candidate(shipped.backends[NAME], files("2.0.0"))
    overrides.adopt(shipped.backends[NAME], "2.0.0")
    assert overrides.applied(catalogue("1.5.0")).backends[NAME].version == "1.5.0"


def test_half_a_recipe_does_not_count_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    overrides, shipped = Overrides(tmp_path), catalogue()
    overrides.write_candidate(shipped.backends[NAME], files("2.0.0"))
    overrides.adopt(shipped.backends[NAME], "2.0.0")
    lock = tmp_path / "recipes" / NAME / "package-lock.json"
    lock.write_text("{}")
    with pytest.raises(ImageBuildError):
        overrides.applied(shipped)
    lock.unlink()
    assert overrides.applied(shipped).backends[NAME].version == "1.0.0"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "candidates").write_text("a file")
    with pytest.raises(ImageBuildError, match="cannot be written"):
        Overrides(tmp_path).write_candidate(catalogue().backends[NAME], files("2.0.0"))
