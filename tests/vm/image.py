"""Disk images of guests: made once for each recipe, never written to by a run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.vm import build
from tests.vm.host import ServiceUser

HERE = Path(__file__).resolve().parent
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def apt_lines(suite: str) -> list[str]:
    """This machine's own Debian mirrors, for another suite; Debian's own where it has none."""
    lines = []
    stanzas = SOURCES.read_text().split("\n\n") if SOURCES.exists() else []
    for stanza in stanzas:
        fields = dict(re.findall(r"^([\w-]+): *(.*)$", stanza, re.MULTILINE))
        for name in fields.get("Suites", "").split():
            kind = re.sub("^[a-z]+", "", name)
            lines.append(f"deb [signed-by={KEYRING}] {fields['URIs']} {suite}{kind} main")
    return lines or [
        f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main",
        f"deb [signed-by={KEYRING}] http://deb.debian.org/debian-security {suite}-security main",
    ]


def recipe(suite: str, image_ids: Sequence[str]) -> str:
    """Twelve digits that change when a newly made image would be another."""
    digest = hashlib.sha256()
    files = [
        Path(build.__file__),
        *build.LOCKS,
        *sorted(path for path in (HERE / "guest").iterdir() if path.name != "check.py"),
    ]
    parts = [suite, *apt_lines(suite), *image_ids, *(path.read_text() for path in files)]
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:12]


@contextmanager
def image_for(suite: str, *, cache: Path, user: ServiceUser, container_images: Sequence[str]) -> Iterator[Path]:
    """The directory with ``root.img``, ``vmlinuz`` and ``initrd``, made first if need be; it stays until the end."""
    ids = [user.image_id(name) for name in container_images]
    wanted = cache / f"{suite}-{recipe(suite, ids)}"
    with (cache / f"{suite}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.is_dir():
            print(f"==> {suite}: making the disk image", flush=True)
            for broken_off in cache.glob(f".{suite}-*"):
                shutil.rmtree(broken_off)
            build.build(suite, wanted, user, container_images, sources=apt_lines(suite))
        for old in cache.glob(f"{suite}-*"):
            if old != wanted:
                _remove_unused(old)
        held = os.open(wanted, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
    try:
        yield wanted
    finally:
        os.close(held)


def _remove_unused(directory: Path) -> None:
    """Remove an image of another recipe, unless a guest runs from it."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
    except BlockingIOError:
        pass
    finally:
        os.close(handle)
