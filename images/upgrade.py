"""Other versions of the CLIs: locked and built beside the current image, then put in its place or taken away."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from images.build import PodmanImageBuilder, ref_of
from images.catalogue import BackendRecipe, Catalogue
from images.npm import Npm
from images.overrides import PACKAGE_FILES
from images.plan import Artifact, current_tag, select, to_build
from images.process import output
from images.progress import Steps
from images.store import by_tag, stored_images
from orchestrator.contract.images import Candidate, ProgressSink
from orchestrator.errors import ImageBuildError, InvalidRequestError


class PodmanImageUpgrader(PodmanImageBuilder):
    """Implements the contract's ImageUpgrader."""

    async def candidate(self, backend: str, *, to: str | None, progress: ProgressSink) -> Candidate | None:
        """See the contract."""
        shipped = await asyncio.to_thread(self._shipped)
        select(shipped, [backend])
        recipe = (await asyncio.to_thread(self._catalogue)).backends[backend]
        if recipe.package is None:
            raise InvalidRequestError(f"the CLI of {backend} is no npm package: its version is in {recipe.context}")
        async with self._exclusive(progress):
            everything = await asyncio.to_thread(self._artifacts, shipped, None, None)
            steps = Steps(progress)
            await self._make_parts(everything, backend, steps)
            with steps.step(backend, f"ask the npm registry for {recipe.package} {to or '(the newest)'}"):
                npm = Npm(everything["builder"].tag, [self._runtime] if self._runtime else [None, "runc", "crun"])
                version = to or await npm.newest(recipe.package)
                if version != recipe.version and version != shipped.backends[backend].version:
                    await npm.check(recipe.package, version)
            if version == recipe.version:
                return None
            catalogue = await self._locked(shipped, recipe, recipe.package, version, npm, steps)
            artifact = (await asyncio.to_thread(self._artifacts, catalogue, None, None))[backend]
            made = artifact.tag not in by_tag(await stored_images())
            if made:
                with steps.step(backend, f"{recipe.package} {version}"):
                    await self._make(artifact, steps, no_cache=False)
            with steps.step(backend, "first start: Podman copies the layers for the runs' id mapping, once"):
                await self._prime(artifact.tag, steps)
            ref = await ref_of(by_tag(await stored_images())[artifact.tag])
        return Candidate(
            backend=backend, package=recipe.package, from_version=recipe.version, version=version, ref=ref, made=made
        )

    async def promote(self, candidate: Candidate, progress: ProgressSink) -> None:
        """See the contract."""
        async with self._exclusive(progress):
            steps = Steps(progress)
            with steps.step(candidate.backend, f"{candidate.version} is current from now on"):
                shipped = (await asyncio.to_thread(self._shipped)).backends[candidate.backend]
                # The recipe first: if we are stopped in between, the image is out of date, and a build mends that.
                await asyncio.to_thread(self._overrides.adopt, shipped, candidate.version)
                await output(["podman", "tag", candidate.ref.tag, current_tag(candidate.backend)])

    async def discard(self, candidate: Candidate, progress: ProgressSink) -> None:
        """See the contract."""
        async with self._exclusive(progress):
            steps = Steps(progress)
            with steps.step(candidate.backend, f"remove the candidate {candidate.version}"):
                await asyncio.to_thread(self._overrides.drop_candidate, candidate.backend)
                stored = by_tag(await stored_images()).get(candidate.ref.tag)
                if candidate.made and stored is not None and not stored.is_current:
                    try:
                        await output(["podman", "rmi", candidate.ref.tag], timeout=120)
                    except ImageBuildError as error:
                        steps.warn(f"{candidate.ref.tag} stays: {error}")

    async def _make_parts(self, everything: dict[str, Artifact], backend: str, steps: Steps) -> None:
        """What the candidate's image is built with, as far as it is not there."""
        present = by_tag(await stored_images())
        for artifact in to_build(everything, ["base", "builder"], present=present, no_cache=False):
            with steps.step(artifact.name, f"for {backend}"):
                await self._make(artifact, steps, no_cache=False)

    async def _locked(
        self, shipped: Catalogue, recipe: BackendRecipe, package: str, version: str, npm: Npm, steps: Steps
    ) -> Catalogue:
        """The catalogue with the candidate's recipe, which is kept."""
        own = shipped.backends[recipe.name]
        if version == own.version:
            files = {name: own.files[name] for name in PACKAGE_FILES}
        else:
            with steps.step(recipe.name, f"lock {package} {version} and what it depends on"):
                work = Path(await asyncio.to_thread(_empty_directory, self._work))
                files = await npm.lock(own.files["package.json"], package, version, work)
        await asyncio.to_thread(self._overrides.write_candidate, own, files)
        catalogue = await asyncio.to_thread(self._overrides.with_candidate, shipped, recipe.name)
        assert catalogue is not None
        return catalogue


def _empty_directory(parent: Path) -> str:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.mkdtemp(dir=parent)
