"""Recipes that other packages bring."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from images.catalogue import GROUP, installed_recipes
from orchestrator.errors import ImageBuildError


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that cannot be imported without harm."""
    for name in ("acme_one", "acme_two"):
        (tmp_path / name / "images" / "acme").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_value_is_a_directory_in_a_package(package: Path) -> None:
    found = installed_recipes(lambda: [point("acme", "acme_one.images.acme")])
    assert found == {"acme": package / "acme_one" / "images" / "acme"}


@pytest.mark.parametrize("value", ["acme_one.images.none", "no_such_package.x", "acme_one.__init__"])
def test_a_place_that_is_none_is_told(package: Path, value: str) -> None:
    with pytest.raises(ImageBuildError, match="not where its package says"):
        installed_recipes(lambda: [point("acme", value)])


def test_one_name_has_one_recipe(package: Path) -> None:
    same = [point("acme", "acme_one.images.acme")] * 2
    assert list(installed_recipes(lambda: same)) == ["acme"]
    with pytest.raises(ImageBuildError, match="two installed packages"):
        installed_recipes(lambda: [*same, point("acme", "acme_two.images.acme")])
