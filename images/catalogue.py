"""The recipes that there are: one directory per image, with the CLI pinned by ``package.json`` and its lock file.

Besides podmentor's own there are those that other installed packages bring, found by the entry points
``podmentor.recipes``.  The value of such an entry point is the place of a directory in dotted form
(``podmentor_acme.recipe``): its first part is an importable package, the rest are directories in it.  Nothing of the
package is executed to find it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.errors import ImageBuildError

RECIPES = Path(__file__).resolve().parent.parent / "Containerfiles"
GROUP = "podmentor.recipes"
"""Of entry points."""
PARTS = ("base", "builder")
"""Recipes that the others stand on; every other directory is a backend's."""

VERSION_FILE = "cli-version"
"""In a recipe whose CLI does not come from npm: one line with its version, in place of the two package files."""

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
    """A backend's image: the npm package of its CLI (None: the recipe brings it by itself) and the exact version."""

    package: str | None
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All recipes: the two common parts and the backends by name."""

    base: Recipe
    builder: Recipe
    backends: Mapping[str, BackendRecipe]


def load_catalogue(root: Path = RECIPES, extra: Mapping[str, Path] | None = None) -> Catalogue:
    """Read the recipes under ``root`` and the ``extra`` ones ({name: context directory}).

    Raises ImageBuildError when they are absent or when a version is not pinned.
    """
    if not all((root / part / "Containerfile").is_file() for part in PARTS):
        raise ImageBuildError(
            f"the image recipes are not at {root}: run podmentor from a checkout that has its Containerfiles directory"
        )
    contexts = [(path.name, path) for path in sorted(root.iterdir()) if path.is_dir() and path.name not in PARTS]
    backends: dict[str, BackendRecipe] = {}
    for name, context in (*contexts, *(extra or {}).items()):
        recipe = read_backend(context, name=name)
        if recipe.name in backends:
            raise ImageBuildError(
                f"two recipes are called {recipe.name}: {backends[recipe.name].context} and {context}"
            )
        backends[recipe.name] = recipe
    base, builder = (Recipe(name=part, context=root / part, files=read_files(root / part)) for part in PARTS)
    return Catalogue(base=base, builder=builder, backends=backends)


def read_backend(context: Path, *, name: str | None = None) -> BackendRecipe:
    """One backend's recipe; its name is the directory's unless another is given.  Raises ImageBuildError when it is not
    complete or not pinned."""
    name = context.name if name is None else name
    if not _NAME.fullmatch(name) or name in PARTS:
        raise ImageBuildError(f"{name!r} is no name for an image (lower case, digits and dashes): {context}")
    return backend_recipe(name, context, read_files(context))


def backend_recipe(name: str, context: Path, files: Mapping[str, bytes]) -> BackendRecipe:
    """The recipe that these files are.  Raises ImageBuildError when it is not complete or not pinned."""
    package: str | None = None
    needed = {"Containerfile"} if VERSION_FILE in files else {"Containerfile", "package.json", "package-lock.json"}
    if missing := needed - files.keys():
        raise ImageBuildError(f"the recipe {context} lacks {', '.join(sorted(missing))}")
    if VERSION_FILE in files:
        version = files[VERSION_FILE].decode("utf-8", "replace").strip()
        if not _EXACT_VERSION.fullmatch(version):
            raise ImageBuildError(f"{context / VERSION_FILE} must hold one exact version, not {version!r}")
    else:
        package, version = pinned(files["package.json"], files["package-lock.json"], where=context)
    return BackendRecipe(name=name, context=context, files=files, package=package, version=version)


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


def _installed() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def installed_recipes(find: Callable[[], Iterable[EntryPoint]] = _installed) -> dict[str, Path]:
    """{name of the backend: context directory}.  Raises ImageBuildError when one of them is not there, or when two
    packages bring recipes of one name."""
    found: dict[str, Path] = {}
    for point in find():
        path = _directory(point)
        if found.setdefault(point.name, path) != path:
            raise ImageBuildError(f"two installed packages bring a recipe {point.name}: {found[point.name]} and {path}")
    return found


def _directory(point: EntryPoint) -> Path:
    package, *parts = point.value.split(".")
    spec = find_spec(package)
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(root, *parts)
        if path.is_dir():
            return path
    raise ImageBuildError(f"the recipe {point.name} ({point.value}) is not where its package says")
