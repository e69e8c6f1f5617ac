"""The recipes that there are: one directory per image, with the CLI pinned by ``package.json`` and its lock file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import ImageBuildError

RECIPES = Path(__file__).resolve().parent.parent / "Containerfiles"
PARTS = ("base", "builder")
"""Recipes that the others stand on; every other directory is a backend's."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_EXACT_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The files of one image's build."""

    name: str
    context: Path
    files: Mapping[str, bytes] = field(repr=False)
    """By path relative to ``context``.  Hidden files and editors' backups are no part of the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRecipe(Recipe):
    """A backend's image: the npm package of its CLI and the exact version."""

    package: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All recipes: the two common parts and the backends by name."""

    base: Recipe
    builder: Recipe
    backends: Mapping[str, BackendRecipe]


def load_catalogue(root: Path = RECIPES, extra: Iterable[Path] = ()) -> Catalogue:
    """Read the recipes under ``root`` and those in the ``extra`` context directories.

    Raises ImageBuildError when they are absent or when a version is not pinned.
    """
    if not all((root / part / "Containerfile").is_file() for part in PARTS):
        raise ImageBuildError(
            f"the image recipes are not at {root}: run podmentor from a checkout that has its Containerfiles directory"
        )
    contexts = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name not in PARTS]
    backends: dict[str, BackendRecipe] = {}
    for context in (*contexts, *extra):
        recipe = read_backend(context)
        if recipe.name in backends:
            raise ImageBuildError(
                f"two recipes are called {recipe.name}: {backends[recipe.name].context} and {context}"
            )
        backends[recipe.name] = recipe
    base, builder = (Recipe(name=part, context=root / part, files=read_files(root / part)) for part in PARTS)
    return Catalogue(base=base, builder=builder, backends=backends)


def read_backend(context: Path) -> BackendRecipe:
    """One backend's recipe.  Raises ImageBuildError when it is not complete or not pinned."""
    if not _NAME.fullmatch(context.name) or context.name in PARTS:
        raise ImageBuildError(f"{context.name!r} is no name for an image (lower case, digits and dashes): {context}")
    files = read_files(context)
    missing = {"Containerfile", "package.json", "package-lock.json"} - files.keys()
    if missing:
        raise ImageBuildError(f"the recipe {context} lacks {', '.join(sorted(missing))}")
    package, version = pinned(files["package.json"], files["package-lock.json"], where=context)
    return BackendRecipe(name=context.name, context=context, files=files, package=package, version=version)


def pinned(package_json: bytes, lock: bytes, *, where: Path) -> tuple[str, str]:
    """The one dependency and its version, which ``package.json`` and the lock file must agree upon."""
    try:
        dependencies: dict[str, Any] = json.loads(package_json)["dependencies"]
        [(package, version)] = dependencies.items()
        locked = json.loads(lock)["packages"][f"node_modules/{package}"]["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageBuildError(
            f"{where}: package.json must name one dependency, and package-lock.json must lock it"
        ) from error
    if not isinstance(version, str) or not _EXACT_VERSION.fullmatch(version):
        raise ImageBuildError(f"{where}: {package} must be pinned to one exact version, not {version!r}")
    if locked != version:
        raise ImageBuildError(
            f"{where}: package.json says {package} {version}, package-lock.json {locked}: "
            "run `npm install --package-lock-only` there"
        )
    return package, version


def read_files(context: Path) -> dict[str, bytes]:
    """The files of a recipe by relative path."""
    try:
        return {
            path.relative_to(context).as_posix(): path.read_bytes()
            for path in sorted(context.rglob("*"))
            if path.is_file() and not _ignored(path.relative_to(context))
        }
    except OSError as error:
        raise ImageBuildError(f"the recipe {context} cannot be read: {error.strerror}") from error


def _ignored(path: Path) -> bool:
    return any(part.startswith(".") or part in {"__pycache__", "node_modules"} for part in path.parts) or (
        path.name.endswith("~")
    )
