"""How a guest's disk image is made, step by step."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.vm.host import ServiceUser

HERE = Path(__file__).resolve().parent
LOCKS = [HERE.parents[1] / "scripts" / f"requirements-{kind}.lock" for kind in ("build", "dev")]
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""The suites that there are, each with its Python."""
BOOT_MODULES = ["virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "9p", "9pnet_virtio"]
KEPT_MODULES = [
    f"*/lib/modules/*/{part}"
    for part in (
        *("modules.*", "kernel/fs/*", "kernel/net/*", "kernel/lib/*", "kernel/crypto/*", "kernel/arch/*"),
        *("kernel/drivers/virtio/*", "kernel/drivers/block/*", "kernel/drivers/net/[a-z]*.ko*"),
    )
]
DISK_SIZE = "10G"
"""Sparse: what is not used takes no room here."""
ALONE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A command's mounts stay off this machine, and nothing of it outlives it."""


def build(
    suite: str, target: Path, user: ServiceUser, container_images: Sequence[str], *, sources: Sequence[str]
) -> None:
    """Make the directory ``target``, whole or not at all.  ``sources``: lines for apt."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{suite}-") as name:
        work = Path(name)
        work.chmod(0o711)
        root, made, wheels, archives = (work / part for part in ("root", "made", "wheels", "archives"))
        for directory in (made, wheels, archives):
            directory.mkdir()
        for directory in (wheels, archives):
            user.give(directory)
        shutil.copytree(HERE / "guest", work / "guest")
        (work / "locks").mkdir()
        for lock in LOCKS:
            shutil.copy(lock, work / "locks")
        locks = [work / "locks" / lock.name for lock in LOCKS]
        user.download(locks, PYTHONS[suite], wheels)
        for number, image in enumerate(container_images):
            user.save_image(image, archives / f"{number}.tar")
        _system(suite, root, work, sources)
        _kernel(root, made)
        subprocess.run(
            [*ALONE, work / "guest" / "images", root, *sorted(archives.iterdir())],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, made / "root.img", DISK_SIZE],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made.rename(target)


def _system(suite: str, root: Path, work: Path, sources: Sequence[str]) -> None:
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")]
    subprocess.run(
        [
            *(*ALONE, "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
            f"--include={','.join((HERE / 'guest' / 'packages').read_text().split())}",
            *excluded,
            f"--customize-hook={work}/guest/customize",
            suite,
            root,
            *sources,
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={**os.environ, "VM_WORK": str(work)},
    )


def _kernel(root: Path, made: Path) -> None:
    """Put the downloaded kernel's modules into root, and vmlinuz and an initial file system into made."""
    package = next((root / "boot").glob("linux-image-*.deb"))
    archive = made.parent / "kernel.tar"
    with archive.open("wb") as file:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=file)
    subprocess.run(
        [
            "tar",
            "-x",
            "-C",
            root,
            "-f",
            archive,
            "--keep-directory-symlink",
            "--wildcards",
            "./boot/vmlinuz-*",
            *KEPT_MODULES,
        ],
        check=True,
    )
    archive.unlink()
    package.unlink()
    kernel = next((root / "boot").glob("vmlinuz-*"))
    release = kernel.name.removeprefix("vmlinuz-")
    kernel.rename(made / "vmlinuz")
    subprocess.run(["chroot", root, "depmod", release], check=True)
    listed = subprocess.run(  # a module that this kernel has built in, or not at all, fails and is not missed
        ["chroot", root, "modprobe", "-S", release, "--show-depends", "-a", *BOOT_MODULES],
        check=False,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    tree = made.parent / "initrd"
    for folder in ("bin", "dev", "root", "modules"):
        (tree / folder).mkdir(parents=True)
    order = []
    for path in dict.fromkeys(re.findall(r"^insmod /(\S+)", listed, re.MULTILINE)):
        content = (root / path).read_bytes()
        order.append(Path(path).name.removesuffix(".xz"))
        (tree / "modules" / order[-1]).write_bytes(lzma.decompress(content) if path.endswith(".xz") else content)
    (tree / "modules" / "order").write_text("\n".join(order))
    shutil.copy(root / "bin" / "busybox", tree / "bin" / "busybox")
    shutil.copy(HERE / "guest" / "init", tree / "init")
    names = "".join(f"{path.relative_to(tree)}\n" for path in [tree, *sorted(tree.rglob("*"))])
    with (made / "initrd").open("wb") as file:
        subprocess.run(
            ["bin/busybox", "cpio", "-o", "-H", "newc"],
            check=True,
            cwd=tree,
            input=names.encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
        )
