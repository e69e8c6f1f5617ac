"""The recipes as they are in the checkout, and what is refused."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from images.catalogue import GROUP, RECIPES, installed_recipes, load_catalogue, read_backend
from orchestrator.errors import ImageBuildError


def write_recipe(context: Path, *, version: str = "1.2.3", locked: str = "1.2.3") -> Path:
    context.mkdir(parents=True)
    (context / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    (context / "package.json").write_text(json.dumps({"dependencies": {"@acme/agent": version}}))
    (context / "package-lock.json").write_text(
        json.dumps({"packages": {"node_modules/@acme/agent": {"version": locked}}})
    )
    return context


def test_claude_code_is_pinned_to_what_its_lock_file_says() -> None:
    recipe = load_catalogue().backends["claude-code"]
    lock = json.loads((RECIPES / "claude-code" / "package-lock.json").read_text())
    assert recipe.package == "@anthropic-ai/claude-code"
    assert recipe.version == lock["packages"]["node_modules/@anthropic-ai/claude-code"]["version"] == "2.1.197"


@pytest.mark.parametrize("name", sorted(load_catalogue().backends))
def test_every_locked_package_has_its_checksum(name: str) -> None:
    lock = json.loads(load_catalogue().backends[name].files["package-lock.json"])
    packages = {path: package for path, package in lock["packages"].items() if path}
    assert packages
    assert [path for path, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []


def test_a_lock_file_of_another_version_is_refused(tmp_path: Path) -> None:
    context = write_recipe(tmp_path / "acme", version="1.2.4")
    with pytest.raises(ImageBuildError, match=r"package\.json says @acme/agent 1\.2\.4, package-lock\.json 1\.2\.3"):
        read_backend(context)


@pytest.mark.parametrize("version", ["^1.2.3", "latest", "1.x", ""])
def test_a_version_that_is_not_exact_is_refused(tmp_path: Path, version: str) -> None:
    context = write_recipe(tmp_path / "acme", version=version, locked=version)
    with pytest.raises(ImageBuildError, match="one exact version"):
        read_backend(context)


def test_a_recipe_without_a_lock_file_is_refused(tmp_path: Path) -> None:
    context = write_recipe(tmp_path / "acme")
    (context / "package-lock.json").unlink()
    with pytest.raises(ImageBuildError, match=r"lacks package-lock\.json"):
        read_backend(context)


@pytest.mark.parametrize("name", ["Acme", "base", "-x", "a_b"])
def test_a_directory_that_cannot_name_an_image_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageBuildError, match="no name for an image"):
        read_backend(write_recipe(tmp_path / name))


def test_recipes_may_come_from_elsewhere(tmp_path: Path) -> None:
    catalogue = load_catalogue(extra={"acme": write_recipe(tmp_path / "elsewhere")})
    assert {"acme", "claude-code"} <= catalogue.backends.keys()
    assert catalogue.backends["acme"].version == "1.2.3"


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="two recipes are called claude-code"):
        load_catalogue(extra={"claude-code": write_recipe(tmp_path / "claude-code")})


def test_hidden_files_and_backups_are_no_part_of_a_recipe(tmp_path: Path) -> None:
    context = write_recipe(tmp_path / "acme")
    before = read_backend(context).files
    (context / ".Containerfile.swp").write_text("x")
    (context / "package.json~").write_text("x")
    (context / ".git").mkdir()
    (context / ".git" / "HEAD").write_text("x")
    assert read_backend(context).files == before


def test_absent_recipes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="run podmentor from a checkout"):
        load_catalogue(tmp_path)


def test_a_cli_that_is_no_npm_package_has_its_version_in_a_file(tmp_path: Path) -> None:
    context = tmp_path / "acme"
    context.mkdir()
    (context / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    (context / "cli-version").write_text("1.2.3\n")
    recipe = read_backend(context)
    assert (recipe.package, recipe.version) == (None, "1.2.3")
    (context / "cli-version").write_text("latest\n")
    with pytest.raises(ImageBuildError, match="one exact version"):
        read_backend(context)


# --- recipes that other packages bring ---


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
