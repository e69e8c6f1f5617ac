"""What Podman's local store holds of ours, and what of it nobody needs any more."""

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from images.plan import LABEL_PARENT, LABEL_PRIME
from images.process import output
from orchestrator.contract.sandbox import IMAGE_REPOSITORY, LABEL_CLI_VERSION, LABEL_IMAGE, LABEL_RECIPE, ImageRef
from orchestrator.errors import ImageBuildError

_WORKING = re.compile(r"(?:.*-)?working-container(?:-\d+)?")
"""How ``podman build`` names its working containers."""
LISTING_PAUSES: Final = (0.1, 0.3, 1.0, 3.0)
"""Seconds between the tries of a listing that a container's end may spoil."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """One of our images as ``podman images`` lists it."""

    image_id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str] = field(repr=False)
    size_bytes: int
    created: str
    containers: int
    """How many containers were made from it, running or not."""

    @property
    def name(self) -> str:
        """Backend, or the part (base, builder, rootfs)."""
        return self.labels.get(LABEL_IMAGE, "")

    @property
    def parent(self) -> str:
        """Tag of the image of ours that it stands on."""
        return self.labels.get(LABEL_PARENT, "")

    @property
    def is_backend(self) -> bool:
        """Whether runs can start from it."""
        return bool(self.labels.get(LABEL_CLI_VERSION))

    @property
    def is_current(self) -> bool:
        """Whether new runs of its backend start from it."""
        return f"{IMAGE_REPOSITORY}/{self.name}:current" in self.tags

    def ref(self, size_bytes: int) -> ImageRef:
        """In the contract's words, by its tag that names the version (the id when it has lost that tag)."""
        lasting = [tag for tag in self.tags if not tag.endswith(":current")]
        return ImageRef(
            image_id=self.image_id,
            tag=next(iter([*lasting, *self.tags]), self.image_id),
            backend=self.name,
            cli_version=self.labels.get(LABEL_CLI_VERSION, ""),
            recipe=self.labels.get(LABEL_RECIPE, ""),
            size_bytes=size_bytes,
            created=self.created,
        )


async def stored_images() -> list[StoredImage]:
    """All our images.  Raises ImageBuildError when Podman does not answer."""
    listing = await output(["podman", "images", f"--filter=label={LABEL_IMAGE}", "--no-trunc", "--format=json"])
    return parse_images(listing)


def parse_images(listing: bytes) -> list[StoredImage]:
    """The answer of ``podman images --format=json``; an image with several tags may come once or several times."""
    try:
        rows: list[dict[str, Any]] = json.loads(listing or b"[]") or []
        images: dict[str, StoredImage] = {}
        for row in rows:
            image_id = row["Id"].removeprefix("sha256:")
            if not _is_ours(row):
                continue
            tags = set(row.get("Names") or row.get("RepoTags") or ())
            if image_id in images:
                tags |= set(images[image_id].tags)
            images[image_id] = StoredImage(
                image_id=image_id,
                tags=tuple(sorted(tag for tag in tags if not tag.startswith("<none>"))),
                labels=row.get("Labels") or {},
                size_bytes=int(row["Size"]),
                created=str(row.get("CreatedAt", "")),
                containers=int(row.get("Containers") or 0),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageBuildError("podman images gave an answer that cannot be understood") from error
    return list(images.values())


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether we made it: it has, or had, a name of ours.  An image that a user built from ours inherits our labels."""
    names = [*(row.get("Names") or row.get("RepoTags") or ()), *(row.get("History") or ())]
    return any(_is_our_name(name) for name in names)


def _is_our_name(tag: str) -> bool:
    return tag.startswith(f"{IMAGE_REPOSITORY}/")


def by_tag(images: Iterable[StoredImage]) -> dict[str, StoredImage]:
    """The images under each of their tags."""
    return {tag: image for image in images for tag in image.tags}


def stale(images: Collection[StoredImage], wanted: AbstractSet[str]) -> list[StoredImage]:
    """Which images nobody needs, in an order in which they can be removed (nothing before what stands on it).

    Kept are: what has a ``wanted`` tag, the current image of each backend, what a container was made from, what
    somebody gave a name of their own, and every image that one of these stands on.
    """
    tagged = by_tag(images)
    kept: set[str] = set()

    def keep(image: StoredImage) -> None:
        if image.image_id not in kept:
            kept.add(image.image_id)
            if image.parent in tagged:
                keep(tagged[image.parent])

    for image in images:
        named_by_others = not all(map(_is_our_name, image.tags))
        needed = image.containers or not wanted.isdisjoint(image.tags) or (image.is_backend and image.is_current)
        if needed or named_by_others:
            keep(image)
    order = {"rootfs": 3, "base": 2, "builder": 1}
    left = [image for image in images if image.image_id not in kept]
    return sorted(left, key=lambda image: (order.get(image.name, 0), image.name, image.created))


async def real_size(image_id: str) -> int:
    """Bytes of an image's layers, each once.

    ``podman images`` also counts the copies that Podman makes of layers for an id mapping, so there an image seems to
    grow by its first run.
    """
    history = await output(["podman", "history", "--no-trunc", "--format=json", image_id])
    try:
        return sum(int(row["size"]) for row in json.loads(history))
    except (ValueError, KeyError, TypeError) as error:
        raise ImageBuildError("podman history gave an answer that cannot be understood") from error


async def leftover_containers() -> list[str]:
    """Ids of the working containers of builds from our images, and of first starts that were cut short.

    ``podman ps --external`` fails as a whole when one container is removed while it lists them ("determining buildah
    container"), which any run's end does: it is asked again.
    """
    listing = ["podman", "ps", "--all", "--external", "--no-trunc", "--format=json"]
    for pause in LISTING_PAUSES:
        try:
            return parse_leftovers(await output(listing))
        except ImageBuildError as error:
            if error.details.get("exit_code") is None:
                raise
        await asyncio.sleep(pause)
    return parse_leftovers(await output(listing))


def parse_leftovers(listing: bytes) -> list[str]:
    """From the answer of ``podman ps --all --external --format=json``, in which builds have the state ``storage``.

    So has any other container for the moment in which Podman makes it, so builds are known by their names.
    """
    try:
        rows: list[dict[str, Any]] = json.loads(listing or b"[]") or []
        return [
            str(row["Id"])
            for row in rows
            if LABEL_PRIME in (row.get("Labels") or {})
            or (
                str(row.get("State")).lower() == "storage"
                and str(row.get("Image")).startswith(f"{IMAGE_REPOSITORY}/")
                and any(_WORKING.fullmatch(str(name)) for name in row.get("Names") or [])
            )
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageBuildError("podman ps gave an answer that cannot be understood") from error
