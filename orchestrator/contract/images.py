"""Building the backends' images, as the command line and the self-check see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from orchestrator.contract.sandbox import ImageRef


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """Something that a build has to say.

    ``started`` opens a step; ``detail`` is one line that its tool printed; ``finished``, ``skipped`` (nothing had to be
    done) or ``warning`` (it could not be done, the build goes on) closes it.
    """

    step: str
    kind: Literal["started", "detail", "finished", "skipped", "warning"]
    text: str
    elapsed_seconds: float
    """Since the step began."""
    number: int
    """Of the step, from 1; 0 for what comes before the first one."""
    total: int


ProgressSink = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedImage:
    """An image of a backend in the local store."""

    ref: ImageRef
    current: bool
    """New runs start from this one."""
    up_to_date: bool
    """It was made from the recipe as it is today."""
    candidate: bool = False
    """An upgrade that has not been decided made it."""
    upgraded: bool = False
    """Its backend's CLI version was chosen on this machine, by an upgrade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedImage:
    """What ``prune`` took away."""

    name: str
    """Tag, or the short id of an image that had none."""
    image_id: str
    size_bytes: int
    """As Podman counts it: layers that other images share are counted too, so the disk may gain less."""


class ImageBuilder(Protocol):
    """Makes images from the recipes.  Every call is bounded in time and safe to cancel."""

    def backends(self) -> list[str]:
        """The backends that have a recipe, sorted.  Raises ImageBuildError when the recipes cannot be found."""
        ...

    def wanted(self, backends: Sequence[str] = ()) -> dict[str, str]:
        """For each backend (none given: all) the tag that its image has when it is up to date."""
        ...

    async def build(
        self,
        backends: Sequence[str] = (),
        *,
        base: str | None = None,
        ca_bundle: Path | None = None,
        no_cache: bool = False,
        progress: ProgressSink,
    ) -> list[ImageRef]:
        """Build what is not up to date (none given: every backend) and make it current.

        ``base``: ``auto``, ``debian`` or a registry reference; ``ca_bundle``: PEM file of certificates that the builds
        and the images shall trust in addition; None: as configured.  ``no_cache`` makes everything anew.
        Raises UnknownBackendError, ImageBuildError (with the last lines that the failing tool printed).
        """
        ...

    async def list_images(self) -> list[ListedImage]:
        """The backends' images in the local store, current ones first within each backend."""
        ...

    async def prune(self, progress: ProgressSink) -> list[RemovedImage]:
        """Remove our images that are neither current nor up to date nor used by a container, and build leftovers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An image with another version of a backend's CLI, built beside the current one."""

    backend: str
    package: str
    """On the npm registry."""
    from_version: str
    """The version of the recipe in force."""
    version: str
    ref: ImageRef
    made: bool
    """It was built for this upgrade, and goes with it when it is not promoted."""


class ImageUpgrader(ImageBuilder, Protocol):
    """Brings other versions of the CLIs in, and takes them out again."""

    async def candidate(self, backend: str, *, to: str | None, progress: ProgressSink) -> Candidate | None:
        """Lock and build the version ``to`` (None: the newest on the registry) of a backend's CLI.  None: that is the
        version of the recipe in force.  Runs go on with the current image, whatever is built.

        Raises UnknownBackendError, InvalidRequestError (not a version, or no npm package), ImageBuildError.
        """
        ...

    async def promote(self, candidate: Candidate, progress: ProgressSink) -> None:
        """New runs start from it from now on, and its recipe is the one in force; runs in progress keep theirs."""
        ...

    async def discard(self, candidate: Candidate, progress: ProgressSink) -> None:
        """Remove it; everything is as before."""
        ...
