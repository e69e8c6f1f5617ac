"""Recipes that other installed packages bring, found by the entry points ``podmentor.recipes``.

The value of such an entry point is the place of a directory in dotted form (``podmentor_acme.recipe``): its first part
is an importable package, the rest are directories in it.  Nothing of the package is executed to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from orchestrator.errors import ImageBuildError

GROUP: Final = "podmentor.recipes"


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
