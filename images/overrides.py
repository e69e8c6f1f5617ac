"""Versions of CLIs that were chosen on this machine, in place of those that come with podmentor.

``<state>/recipes/<backend>/``     the version in force: ``package.json``, ``package-lock.json``, and ``.shipped``
``<state>/candidates/<backend>/``  the same of a version that is being tried

``.shipped`` holds the version that podmentor itself brought at the time.  Once podmentor comes with another one, its
own recipe counts again: it is newer than the choice, and was tried by those who made it.  All other files of a recipe
always are podmentor's own.  Everything here blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from images.catalogue import BackendRecipe, Catalogue, backend_recipe
from orchestrator.errors import ImageBuildError

PACKAGE_FILES: Final = ("package.json", "package-lock.json")
_SHIPPED: Final = ".shipped"


class Overrides:
    """Those of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._recipes = state_dir / "recipes"
        self._candidates = state_dir / "candidates"

    def holds(self, backend: str) -> bool:
        """Whether another version was chosen for this backend (in force or not)."""
        return (self._recipes / backend / _SHIPPED).is_file()

    def applied(self, shipped: Catalogue) -> Catalogue:
        """The catalogue with the chosen versions.  Raises ImageBuildError when one of them is damaged."""
        return _applied(shipped, {name: self._recipes / name for name in shipped.backends})

    def with_candidate(self, shipped: Catalogue, backend: str) -> Catalogue | None:
        """The catalogue with the version that is being tried; None: there is none."""
        path = self._candidates / backend
        return _applied(shipped, {backend: path}) if (path / _SHIPPED).is_file() else None

    def write_candidate(self, shipped: BackendRecipe, files: Mapping[str, bytes]) -> None:
        """Keep the package files of a version that is to be tried.  Raises ImageBuildError."""
        path = self._candidates / shipped.name
        try:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700, parents=True)
            for name in PACKAGE_FILES:
                (path / name).write_bytes(files[name])
            (path / _SHIPPED).write_text(shipped.version + "\n", encoding="utf-8")  # last: it makes the others count
        except OSError as error:
            raise ImageBuildError(f"the recipe cannot be written to {path}: {error.strerror}") from error

    def adopt(self, shipped: BackendRecipe, version: str) -> None:
        """Put the version that was tried in force.  Where that is the shipped one, nothing is chosen any more."""
        chosen, candidate = self._recipes / shipped.name, self._candidates / shipped.name
        try:
            shutil.rmtree(chosen, ignore_errors=True)
            if version == shipped.version:
                shutil.rmtree(candidate, ignore_errors=True)
                return
            chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(candidate, chosen)  # noqa: PTH105  # as atomic as it says
        except OSError as error:
            raise ImageBuildError(f"the recipe cannot be put at {chosen}: {error.strerror}") from error

    def drop_candidate(self, backend: str) -> None:
        """Forget the version that was tried; fine when there is none."""
        shutil.rmtree(self._candidates / backend, ignore_errors=True)


def _applied(shipped: Catalogue, places: Mapping[str, Path]) -> Catalogue:
    backends = dict(shipped.backends)
    for name, path in places.items():
        recipe = backends[name]
        try:
            if (path / _SHIPPED).read_text(encoding="utf-8").strip() != recipe.version:
                continue  # podmentor has moved on since
            files = {file: (path / file).read_bytes() for file in PACKAGE_FILES}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ImageBuildError(f"the recipe {path} cannot be read: {error.strerror}") from error
        backends[name] = backend_recipe(name, recipe.context, {**recipe.files, **files})
    return replace(shipped, backends=backends)
