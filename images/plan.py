"""What has to be built, in which order, and by which commands.  Pure: nothing here touches the machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.catalogue import Catalogue
from orchestrator.contract.sandbox import IMAGE_REPOSITORY, LABEL_CLI_VERSION, LABEL_IMAGE, LABEL_RECIPE
from orchestrator.errors import InvalidRequestError, UnknownBackendError

LABEL_PARENT = "podmentor.parent"
"""Tag of our image that this one stands on; empty when it stands on none of ours."""
LABEL_PRIME = "podmentor.prime"
"""On the container of an image's first start."""
CA_FILE = "ca-extra.pem"
"""In the base's build context: the certificates to trust in addition; empty when there are none."""

FORMAT_VERSION = "1"
"""Raise it when the build itself changes in a way that the recipes' files do not show."""
SHORT = 12
"""Digits of the hash that are part of a tag."""

SUITE = "trixie"
_SOURCES = (
    f"deb http://deb.debian.org/debian {SUITE} main",
    f"deb http://deb.debian.org/debian {SUITE}-updates main",
    f"deb http://deb.debian.org/debian-security {SUITE}-security main",
)
"""Plain HTTP as Debian does: apt verifies signatures, and needs no certificates for this."""
_ROOTFS_OPTIONS = (
    "--mode=unshare",  # rootless: in a user namespace of the caller's subordinate ids
    "--variant=minbase",
    "--format=tar",
    # Documentation and translations nobody reads in a sandbox: a quarter of the size.
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
)
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An image that may have to be made.  No ``files``: it is a root file system that mmdebstrap makes."""

    name: str
    tag: str
    recipe: str
    needs: tuple[str, ...] = ()
    """Tags of our images that must be there first."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    packages: tuple[str, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    cli_version: str | None = None
    from_registry: bool = False

    @property
    def is_rootfs(self) -> bool:
        """Whether mmdebstrap makes it rather than a Containerfile."""
        return not self.files

    @property
    def labels(self) -> dict[str, str]:
        """All our labels, also the empty ones: a label that is not set is inherited from the parent."""
        return {
            LABEL_IMAGE: self.name,
            LABEL_CLI_VERSION: self.cli_version or "",
            LABEL_RECIPE: self.recipe,
            LABEL_PARENT: self.needs[0] if self.needs else "",
        }


def resolve_base(base: str) -> str:
    """``debian`` or a registry reference.  Raises InvalidRequestError for what can be neither."""
    if base in {"auto", "debian"}:
        return "debian"
    if not _REFERENCE.fullmatch(base):
        raise InvalidRequestError(f"--base must be auto, debian or an image reference, not {base!r}")
    return base


def artifacts(catalogue: Catalogue, *, base: str, ca: bytes) -> dict[str, Artifact]:
    """Every image there is, by name, each after those it needs."""
    base = resolve_base(base)
    made: dict[str, Artifact] = {}
    parent: tuple[str, ...] = ()
    base_input = base
    if base == "debian":
        packages = package_list(catalogue.base.files["packages.txt"])
        recipe = recipe_hash({}, "rootfs", *_ROOTFS_OPTIONS, *_SOURCES, *packages)
        made["rootfs"] = Artifact(name="rootfs", tag=_tag("rootfs", recipe), recipe=recipe, packages=packages)
        parent, base_input = (made["rootfs"].tag,), recipe

    files = {**catalogue.base.files, CA_FILE: ca}
    recipe = recipe_hash(files, "base", base_input)
    made["base"] = base_image = Artifact(
        name="base",
        tag=_tag("base", recipe),
        recipe=recipe,
        needs=parent,
        files=files,
        build_args={"BASE": parent[0] if parent else base},
        from_registry=not parent,
    )
    recipe = recipe_hash(catalogue.builder.files, "builder", base_image.recipe)
    made["builder"] = builder = Artifact(
        name="builder",
        tag=_tag("builder", recipe),
        recipe=recipe,
        needs=(base_image.tag,),
        files=catalogue.builder.files,
        build_args={"BASE": base_image.tag},
    )
    for name, backend in sorted(catalogue.backends.items()):
        recipe = recipe_hash(backend.files, "backend", name, base_image.recipe, builder.recipe)
        made[name] = Artifact(
            name=name,
            tag=_tag(name, recipe, backend.version),
            recipe=recipe,
            needs=(base_image.tag, builder.tag),
            files=backend.files,
            build_args={"BASE": base_image.tag, "BUILDER": builder.tag},
            cli_version=backend.version,
        )
    return made


def recipe_hash(files: Mapping[str, bytes], *inputs: str) -> str:
    """Hash of a recipe's files (by name, in whatever order they come) and of what else the image is made from.

    Every part goes in with its length, so that no two different sets of parts look the same.
    """
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)

    for text in (FORMAT_VERSION, str(len(inputs)), *inputs):
        add(text.encode())
    for name in sorted(files):
        add(name.encode())
        add(files[name])
    return digest.hexdigest()


def select(catalogue: Catalogue, backends: Sequence[str]) -> list[str]:
    """The backends to work on, sorted and without repetition; none given: all.  Raises UnknownBackendError."""
    for name in backends:
        if name not in catalogue.backends:
            known = ", ".join(sorted(catalogue.backends))
            raise UnknownBackendError(f"there is no recipe for an image {name!r}; there are: {known}")
    return sorted(set(backends) or set(catalogue.backends))


def to_build(
    all_artifacts: Mapping[str, Artifact], names: Iterable[str], *, present: Collection[str], no_cache: bool
) -> list[Artifact]:
    """What must be made so that ``names`` are there, in order; a part that nothing is to be made from is left out."""
    by_tag = {artifact.tag: artifact for artifact in all_artifacts.values()}
    wanted: set[str] = set()

    def want(artifact: Artifact) -> None:
        if artifact.name not in wanted and (no_cache or artifact.tag not in present):
            wanted.add(artifact.name)
            for tag in artifact.needs:
                want(by_tag[tag])

    for name in names:
        want(all_artifacts[name])
    return [artifact for artifact in all_artifacts.values() if artifact.name in wanted]


def package_list(text: bytes) -> tuple[str, ...]:
    """The package names in ``packages.txt``: sorted, without comments."""
    lines = (line.partition("#")[0] for line in text.decode().splitlines())
    return tuple(sorted({name for line in lines for name in line.split()}))


def current_tag(backend: str) -> str:
    """The tag that new runs use."""
    return f"{IMAGE_REPOSITORY}/{backend}:current"


def rootfs_argv(artifact: Artifact, tarball: Path) -> list[str]:
    """Makes the root file system.

    The temporary directory must be one that subordinate ids can enter, and on disk: /tmp may be memory.
    """
    include = f"--include={','.join(artifact.packages)}"
    return ["env", "TMPDIR=/var/tmp", "mmdebstrap", *_ROOTFS_OPTIONS, include, SUITE, str(tarball), *_SOURCES]


def import_argv(artifact: Artifact, tarball: Path) -> list[str]:
    """Makes an image of the root file system."""
    changes = [f"--change=LABEL {name}={value}" for name, value in artifact.labels.items() if value]
    return [*_podman(tarball.parent), "import", "--quiet", *changes, str(tarball), artifact.tag]


def build_argv(artifact: Artifact, context: Path, *, no_cache: bool) -> list[str]:
    """Builds from a Containerfile.

    chroot isolation works wherever rootless Podman does, whatever the OCI runtime makes of the host's cgroups.
    Without layers nothing but the finished image stays in the store.
    """
    pull = "never" if not artifact.from_registry else "always" if no_cache else "missing"
    return [
        *_podman(context.parent),
        "build",
        "--isolation=chroot",
        "--network=host",
        "--layers=false",
        "--force-rm",
        f"--pull={pull}",
        *(f"--build-arg={name}={value}" for name, value in artifact.build_args.items()),
        *(f"--label={name}={value}" for name, value in artifact.labels.items()),
        f"--tag={artifact.tag}",
        f"--file={context / 'Containerfile'}",
        str(context),
    ]


def prime_argv(tag: str, runtime: str | None) -> list[str]:
    """Starts the image once with the id mapping of the runs: the first time Podman copies every layer for it."""
    return [
        "podman",
        *([f"--runtime={runtime}"] if runtime else []),
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        "--userns=keep-id:uid=1000,gid=1000",
        "--read-only",
        "--cap-drop=all",
        f"--label={LABEL_PRIME}=1",
        tag,
        "true",
    ]


def _podman(work: Path) -> list[str]:
    """Podman with its temporary files in our own directory: when it is killed it leaves them."""
    return ["env", f"TMPDIR={work}", "podman"]


def _tag(name: str, recipe: str, version: str | None = None) -> str:
    return f"{IMAGE_REPOSITORY}/{name}:{f'{version}-' if version else ''}{recipe[:SHORT]}"
