"""The image builder: makes what is not up to date, and leaves nothing behind when it is stopped.

One build at a time in the store of a user's Podman, whatever the state directories are.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from images.catalogue import RECIPES, Catalogue, load_catalogue
from images.overrides import Overrides
from images.plan import (
    Artifact,
    artifacts,
    build_argv,
    current_tag,
    import_argv,
    prime_argv,
    rootfs_argv,
    select,
    to_build,
)
from images.process import output, run_lines
from images.progress import Steps
from images.store import StoredImage, by_tag, leftover_containers, real_size, stale, stored_images
from images.trust import extra_certificates
from orchestrator.contract.images import BuildProgress, ListedImage, ProgressSink, RemovedImage
from orchestrator.contract.sandbox import ImageRef
from orchestrator.errors import ImageBuildError
from orchestrator.system.locks import try_lock

ROOTFS_SECONDS = 900.0
BUILD_SECONDS = 1800.0
PRIME_SECONDS = 300.0
LOCK_SECONDS = 3600.0
_TITLES = {
    "rootfs": "Debian root file system (mmdebstrap)",
    "base": "base image: tools, the agent's user, certificates",
    "builder": "build stage with npm (stays out of the images)",
}
_POLL_SECONDS = 0.25


class PodmanImageBuilder:
    """Builds with rootless Podman and mmdebstrap; implements the contract's ImageBuilder."""

    def __init__(
        self,
        *,
        state_dir: Path,
        base: str = "auto",
        ca_bundle: Path | None = None,
        runtime: str | None = None,
        recipes: Path = RECIPES,
        extra_recipes: Mapping[str, Path] | None = None,
    ) -> None:
        self._lock_file = lock_path(state_dir)
        self._work = state_dir.absolute() / "images"
        self._base = base
        self._ca_bundle = ca_bundle
        self._runtime = runtime
        self._recipes = recipes
        self._extra = dict(extra_recipes or {})
        self._overrides = Overrides(state_dir.absolute())

    def backends(self) -> list[str]:
        """See the contract."""
        return sorted(self._catalogue().backends)

    def wanted(self, backends: Sequence[str] = ()) -> dict[str, str]:
        """See the contract."""
        catalogue = self._catalogue()
        everything = self._artifacts(catalogue, None, None)
        return {name: everything[name].tag for name in select(catalogue, backends)}

    async def build(
        self,
        backends: Sequence[str] = (),
        *,
        base: str | None = None,
        ca_bundle: Path | None = None,
        no_cache: bool = False,
        progress: ProgressSink,
    ) -> list[ImageRef]:
        """See the contract."""
        catalogue = await asyncio.to_thread(self._catalogue)
        names = select(catalogue, backends)
        everything = await asyncio.to_thread(self._artifacts, catalogue, base, ca_bundle)
        async with self._exclusive(progress):
            present = by_tag(await stored_images())
            missing = to_build(everything, names, present=present, no_cache=no_cache)
            behind = [name for name in names if no_cache or not _is_current(everything[name], present)]
            steps = Steps(progress, total=len(missing) + len(names))
            for artifact in missing:
                with steps.step(artifact.name, _title(artifact)):
                    await self._make(artifact, steps, no_cache=no_cache)
            for name in names:
                if name not in behind:
                    steps.skip(name, f"{everything[name].tag} is up to date")
                    continue
                with steps.step(name, "first start: Podman copies the layers for the runs' id mapping, once"):
                    await self._prime(everything[name].tag, steps)
                    # Last of all: until here, runs start from the image they have used so far.
                    await output(["podman", "tag", everything[name].tag, current_tag(name)])
            present = by_tag(await stored_images())
            return [await ref_of(present[everything[name].tag]) for name in names]

    async def list_images(self) -> list[ListedImage]:
        """See the contract."""
        wanted = set((await asyncio.to_thread(self.wanted)).values())
        candidates = await asyncio.to_thread(self._candidate_tags)
        listed = [
            ListedImage(
                ref=ref,
                current=image.is_current,
                up_to_date=not wanted.isdisjoint(image.tags),
                candidate=not candidates.isdisjoint(image.tags),
                upgraded=self._overrides.holds(image.name),
            )
            for image in await stored_images()
            if image.is_backend and (ref := await _ref_if_there(image)) is not None
        ]
        newest_first = sorted(listed, key=lambda image: image.ref.created, reverse=True)
        return sorted(newest_first, key=lambda image: (image.ref.backend, not image.current))

    async def prune(self, progress: ProgressSink) -> list[RemovedImage]:
        """See the contract."""
        catalogue = await asyncio.to_thread(self._catalogue)
        everything = await asyncio.to_thread(self._artifacts, catalogue, None, None)
        removed = []
        async with self._exclusive(progress):
            await self._sweep(keep=set())
            candidates = await asyncio.to_thread(self._candidate_tags)
            old = stale(await stored_images(), {artifact.tag for artifact in everything.values()} | candidates)
            steps = Steps(progress, total=len(old))
            for image in old:
                label = next(iter(image.tags), image.image_id[:12])
                with steps.step(image.name, f"remove {label}"):
                    size = await real_size(image.image_id)
                    try:
                        # Not by force: that would also end a run which has started from it since the listing.
                        await output(["podman", "rmi", *(image.tags or (image.image_id,))], timeout=120)
                    except ImageBuildError as error:
                        steps.warn(f"{label} stays: {error}")
                        continue
                removed.append(RemovedImage(name=label, image_id=image.image_id, size_bytes=size))
        return removed

    def _catalogue(self) -> Catalogue:
        """The recipes in force: those that come with podmentor, and what an upgrade has put in place of them."""
        return self._overrides.applied(self._shipped())

    def _shipped(self) -> Catalogue:
        return load_catalogue(self._recipes, self._extra)

    def _candidate_tags(self) -> set[str]:
        """The tags of the images that are being tried by an upgrade."""
        shipped = self._shipped()
        found = {name: self._overrides.with_candidate(shipped, name) for name in shipped.backends}
        return {
            self._artifacts(catalogue, None, None)[name].tag
            for name, catalogue in found.items()
            if catalogue is not None
        }

    def _artifacts(self, catalogue: Catalogue, base: str | None, ca_bundle: Path | None) -> dict[str, Artifact]:
        ca = extra_certificates(ca_bundle or self._ca_bundle)
        return artifacts(catalogue, base=base or self._base, ca=ca)

    @contextlib.asynccontextmanager
    async def _exclusive(self, progress: ProgressSink) -> AsyncIterator[None]:
        """The lock, and no leftovers: neither of a build that crashed before this one nor of this one."""

        def waiting() -> None:
            text = "waiting for another build to end"
            progress(BuildProgress(step="lock", kind="started", text=text, elapsed_seconds=0.0, number=0, total=0))

        async with build_lock(self._lock_file, timeout=LOCK_SECONDS, on_wait=waiting):
            if self._work.exists():  # a build of this state directory was killed
                await self._sweep(keep=set())
            # What podmentor did not begin itself, say by hand, is not ours to remove.
            others = set(await leftover_containers())
            try:
                yield
            except BaseException:
                with contextlib.suppress(ImageBuildError):  # the first failure is the one to report
                    await self._sweep(keep=others)
                raise
            await self._remove_work()

    async def _sweep(self, *, keep: set[str]) -> None:
        for container in await leftover_containers():
            if container not in keep:
                await output(["podman", "rm", "--force", container], timeout=120)
        await self._remove_work()

    async def _remove_work(self) -> None:
        if self._work.exists():
            # A build that was killed leaves files of subordinate ids, which only their user namespace can remove.
            await output(["podman", "unshare", "rm", "-rf", "--", str(self._work)], timeout=120)

    async def _make(self, artifact: Artifact, steps: Steps, *, no_cache: bool) -> None:
        work = Path(await asyncio.to_thread(_work_dir, self._work))
        if artifact.is_rootfs:
            if shutil.which("mmdebstrap") is None:
                raise ImageBuildError(
                    "mmdebstrap is not installed: apt-get install mmdebstrap, or build on a registry's image "
                    "(--base debian:trixie-slim)"
                )
            tarball = work / "rootfs.tar"
            await run_lines(rootfs_argv(artifact, tarball), timeout=ROOTFS_SECONDS, on_line=steps.detail)
            await run_lines(import_argv(artifact, tarball), timeout=ROOTFS_SECONDS, on_line=steps.detail)
            await asyncio.to_thread(tarball.unlink)
            return
        context = work / "context"
        await asyncio.to_thread(_write, context, artifact.files)
        argv = build_argv(artifact, context, no_cache=no_cache)
        await run_lines(argv, timeout=BUILD_SECONDS, on_line=steps.detail, apart=True)

    async def _prime(self, tag: str, steps: Steps) -> None:
        """Start the image once.  That it cannot be started is the host's trouble, which the self-check explains."""
        # Podman's default may be one that refuses this host; the second round is for failures that pass.
        runtimes = [self._runtime] if self._runtime else [None, "runc", "crun"]
        failure: ImageBuildError | None = None
        for runtime in (*runtimes, *runtimes):
            try:
                await run_lines(prime_argv(tag, runtime), timeout=PRIME_SECONDS, on_line=steps.detail)
            except ImageBuildError as error:
                failure = failure or error
            else:
                return
        steps.warn(f"the image is built but could not be started (see podmentor doctor): {failure}")


def _title(artifact: Artifact) -> str:
    return _TITLES.get(artifact.name) or f"{artifact.name} {artifact.cli_version}"


def _is_current(artifact: Artifact, present: Mapping[str, StoredImage]) -> bool:
    return artifact.tag in present and present[artifact.tag].is_current


async def ref_of(image: StoredImage) -> ImageRef:
    """In the contract's words."""
    return image.ref(await real_size(image.image_id))


async def _ref_if_there(image: StoredImage) -> ImageRef | None:
    """None when somebody has removed it since it was listed."""
    try:
        return await ref_of(image)
    except ImageBuildError:
        if any(other.image_id == image.image_id for other in await stored_images()):
            raise
        return None


def _work_dir(parent: Path) -> str:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.mkdtemp(dir=parent)


def _write(context: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def lock_path(state_dir: Path) -> Path:
    """One for all that a user's Podman holds; where there is no place for that, one for the state directory.

    Whoever is stopped in a build, or prunes, removes the working containers that are there: they must not be those of a
    build that goes on, in another state directory or checkout.
    """
    shared = Path(f"/run/user/{os.geteuid()}")
    return (shared if os.access(shared, os.W_OK) else state_dir) / "podmentor-images.lock"


@asynccontextmanager
async def build_lock(path: Path, *, timeout: float, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold the lock file; ``on_wait`` is called once when somebody else has it.

    The kernel releases it when the process ends, however it ends.  Raises ImageBuildError after ``timeout`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    waiting = False
    while (descriptor := _try_lock(path)) is None:  # a build takes minutes, so asking now and then is cheap
        if not waiting:
            on_wait()
            waiting = True
        if asyncio.get_running_loop().time() > deadline:
            raise ImageBuildError(f"another build still holds {path} after {timeout:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock(path)
    except OSError as error:
        raise ImageBuildError(f"the lock cannot be used: {path}: {error.strerror}") from error
