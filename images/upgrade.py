"""Other versions of the CLIs: locked and built beside the current image, then put in its place or taken away.

The npm registry is asked with the npm of the build stage: the host needs none.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.build import PodmanImageBuilder, ref_of
from images.catalogue import BackendRecipe, Catalogue
from images.overrides import PACKAGE_FILES
from images.plan import LABEL_PRIME, Artifact, current_tag, select, to_build
from images.process import output
from images.progress import Steps
from images.store import by_tag, stored_images
from orchestrator.contract.images import Candidate, ProgressSink
from orchestrator.errors import ImageBuildError, InvalidRequestError

NPM_SECONDS: Final = 300.0
"""For one command of npm: a slow registry, and an image that has to be read from disk."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_PODMAN_FAILED: Final = frozenset({125, 126, 127})
"""Exit codes of ``podman run`` when the container could not be started."""


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


class Npm:
    """npm in a container of the image ``builder``.  ``runtimes``: OCI runtimes to try, None: Podman's own choice."""

    def __init__(self, builder: str, runtimes: Sequence[str | None]) -> None:
        self._builder = builder
        self._runtimes = runtimes

    async def newest(self, package: str) -> str:
        """The version that the registry calls the latest.  Raises ImageBuildError."""
        return await self._version(package, "latest")

    async def check(self, package: str, version: str) -> None:
        """Raises InvalidRequestError when there is no such version."""
        if not _VERSION.fullmatch(version):
            raise InvalidRequestError(f"{version!r} is not a version; it looks like 1.2.3")
        try:
            found = await self._version(package, version)
        except ImageBuildError as error:
            if "E404" not in " ".join([str(error), *error.details.get("lines", ())]):
                raise
            found = ""
        if found != version:
            raise InvalidRequestError(f"the npm registry has no {package} {version}")

    async def lock(self, package_json: bytes, package: str, version: str, work: Path) -> dict[str, bytes]:
        """The two package files for this version, every package with its checksum.  ``work``: an empty directory."""
        manifest = json.loads(package_json)
        manifest["dependencies"] = {package: version}
        file = work / "package.json"
        file.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        arguments = ("install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund")
        await self._run(*arguments, mount=work)
        return {name: (work / name).read_bytes() for name in ("package.json", "package-lock.json")}

    async def _version(self, package: str, which: str) -> str:
        answer = (await self._run("view", f"{package}@{which}", "version", "--json")).decode("utf-8", "replace")
        try:
            return str(json.loads(answer))
        except ValueError:
            return ""

    async def _run(self, *arguments: str, mount: Path | None = None) -> bytes:
        failure: ImageBuildError | None = None
        for runtime in self._runtimes:
            try:
                return await output(npm_argv(self._builder, runtime, arguments, mount=mount), timeout=NPM_SECONDS)
            except ImageBuildError as error:
                failure = error
                if error.details.get("exit_code") not in _PODMAN_FAILED:
                    break
        assert failure is not None
        raise failure


def npm_argv(builder: str, runtime: str | None, arguments: Sequence[str], *, mount: Path | None) -> list[str]:
    """npm in a container that is removed afterwards.  Pure."""
    return [
        "podman",
        *([f"--runtime={runtime}"] if runtime else []),
        "run",
        "--rm",
        "--pull=never",
        "--network=host",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--security-opt=label=disable",
        f"--label={LABEL_PRIME}=1",
        *([f"--volume={mount}:/build"] if mount else []),
        "--workdir=/build",
        builder,
        "npm",
        *arguments,
    ]
