"""The demo's sample repo on disk, and a fingerprint that shows whether anything in it changed."""

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import StorageError

_GIT_SECONDS = 30.0
_GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "podmentor demo",
    "GIT_AUTHOR_EMAIL": "demo@localhost",
    "GIT_COMMITTER_NAME": "podmentor demo",
    "GIT_COMMITTER_EMAIL": "demo@localhost",
}


async def make_repo(where: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` to the new directory ``where`` and commit them; without git it is a plain directory."""
    await asyncio.to_thread(_write, where, files)
    if shutil.which("git") is None:
        return
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all"),
        ("commit", "--quiet", "--message=A script and its check"),
    ):
        await _git(where, *arguments)


def _write(where: Path, files: Mapping[str, str]) -> None:
    where.mkdir(parents=True, mode=0o755)
    for name, content in files.items():
        target = where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")


async def _git(where: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(where),
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "commit.gpgSign=false",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(where), **_GIT_ENV},
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _GIT_SECONDS)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise StorageError(f"git {arguments[0]} failed in {where}: {said.decode(errors='replace').strip()}")


def fingerprint(root: Path) -> str:
    """One hash over every path below ``root``: kind, mode, content or link target; .git included."""
    total = hashlib.sha256()
    for directory, folders, names in os.walk(root):
        folders.sort()
        for name in sorted([*names, *folders]):
            path = Path(directory) / name
            found = path.lstat()
            total.update(os.fsencode(path.relative_to(root)) + f"\0{found.st_mode:o}\0".encode())
            if stat.S_ISLNK(found.st_mode):
                total.update(os.fsencode(path.readlink()))
            elif stat.S_ISREG(found.st_mode):
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
