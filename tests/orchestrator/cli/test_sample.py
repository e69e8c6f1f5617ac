import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.sample import fingerprint, make_repo

FILES = {"README.md": "# x\n", "src/a.sh": "echo\n"}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
async def test_a_repo_with_one_commit(tmp_path: Path) -> None:
    await make_repo(tmp_path / "r", FILES)
    git = await asyncio.create_subprocess_exec(
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(tmp_path / "r"),
        "status",
        "--porcelain",
        "--branch",
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await git.communicate())[0] == b"## main\n"
    assert (tmp_path / "r/src/a.sh").read_text() == "echo\n"


async def test_without_git_it_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    await make_repo(tmp_path / "r", FILES)
    assert not (tmp_path / "r/.git").exists()
    assert (tmp_path / "r/README.md").exists()


def edit(root: Path) -> None:
    (root / "a").write_text("changed")


def chmod(root: Path) -> None:
    (root / "a").chmod(0o755)


def add_folder(root: Path) -> None:
    (root / "empty").mkdir()


def remove(root: Path) -> None:
    (root / "d/b").unlink()


def relink(root: Path) -> None:
    (root / "l").unlink()
    (root / "l").symlink_to("d")


def rename(root: Path) -> None:
    (root / "a").rename(root / "c")


@pytest.mark.parametrize("change", [edit, chmod, add_folder, remove, relink, rename])
def test_every_change_shows(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_text("a")
    (tmp_path / "d/b").write_text("b")
    (tmp_path / "l").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    change(tmp_path)
    assert fingerprint(tmp_path) != before
