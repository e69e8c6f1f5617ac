"""Changes read from real overlays: the kernel's own whiteouts and opaque directories, made by a rootless container."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.contract.workspace import Prepared
from orchestrator.workspace import DirectoryWorkspaces
from tests.orchestrator.workspace.test_changes_property import apply, by_path, expected
from tests.orchestrator.workspace.trees import File, Link, Tree, make, read, without_empty

pytestmark = pytest.mark.podman

IMAGE = "localhost/podmentor/claude-code:current"
ID = "0123456789abcdef0123456789abcdef"
REPO: Tree = {
    b"README.md": File(b"hello\nworld\n"),
    b"run.sh": File(b"#!/bin/sh\n", executable=True),
    b"link": Link(b"README.md"),
    b"binary name \xff\n": File(b"odd\n"),
    b"src": {b"a.py": File(b"one\ntwo\nthree\n"), b"b.py": File(b"b\n"), b"deep": {b"er": {b"x": File(b"x\n")}}},
    b"docs": {b"index.md": File(b"# docs\n"), b"img": {b"logo.svg": File(b"<svg/>")}},
    b"keep": {b"me": File(b"kept\n")},
}


async def podman(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "podman", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd="/"
    )
    output, _ = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, output.decode()


async def delete_tree(path: Path) -> None:
    await podman("unshare", "rm", "-rf", "--", str(path))


def reader() -> DirectoryWorkspaces:
    """Reads mounts that others have prepared."""
    nowhere = Path("/nonexistent")
    return DirectoryWorkspaces(Paths(state_dir=nowhere, runtime_dir=nowhere), delete_tree)


async def agent(made: Prepared, script: str) -> None:
    """Run a script in the workspace as an agent would, then copy what it sees into its home."""
    mount = made.mount
    (made.home / "script").write_text(f"set -e\n{script}\ncp -a /workspace /home/agent/seen || :\n")
    await podman(
        "run",
        "--rm",
        "--init",
        "--pull=never",
        "--network=none",
        "--userns=keep-id:uid=1000,gid=1000",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--tmpfs=/tmp",
        f"--volume={mount.source}:/workspace:O,upperdir={mount.upper},workdir={mount.work}",
        f"--volume={made.home}:/home/agent",
        "--workdir=/workspace",
        "--entrypoint=",
        IMAGE,
        "bash",
        "/home/agent/script",
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    make(repo, REPO)
    return repo


@pytest.fixture
async def workspaces(tmp_path: Path) -> AsyncIterator[DirectoryWorkspaces]:
    workspaces = DirectoryWorkspaces(Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"), delete_tree)
    yield workspaces
    await workspaces.discard(ID)  # pytest cannot remove the kernel's leftovers


async def check(made: Prepared, repo: Path, tmp_path: Path) -> None:
    """The list and the patch say what the agent saw at its end; the repo is as it was."""
    seen = read(made.home / "seen")
    seen.pop(b".git", None)
    assert by_path(await reader().list_changes(made.mount)) == expected(REPO, seen)
    copy = tmp_path / "copy"
    copy.mkdir()
    make(copy, REPO)
    if patch := await reader().unified_patch(made.mount):
        apply(patch, copy)
    assert read(copy) == without_empty(seen)
    assert read(repo) == REPO
    await asyncio.to_thread(shutil.rmtree, copy)
    await asyncio.to_thread(shutil.rmtree, made.home / "seen")


async def test_changes_of_every_kind(workspaces: DirectoryWorkspaces, repo: Path, tmp_path: Path) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(
        made,
        r"""
        sed -i s/world/there/ README.md
        chmod -x run.sh
        rm link && mkdir link && echo in > link/inner
        rm -r src/deep && mkdir -p src/deep/er && echo y > src/deep/er/y
        rm -r docs && ln -s src docs
        touch keep/me                     # copied up, not changed
        git init -q . 2>/dev/null
        echo new > 'sp ace' && : > empty
        """,
    )
    assert made.mount.upper is not None
    whiteouts = [p for p in made.mount.upper.rglob("*") if stat.S_ISCHR(p.lstat().st_mode)]
    assert whiteouts == []  # each name that went was taken by another
    assert os.getxattr(made.mount.upper / "link", "user.overlay.opaque") == b"y"
    assert (made.mount.upper / ".git").is_dir()
    await check(made, repo, tmp_path)


async def test_the_next_run_goes_on_and_discard_leaves_nothing(
    workspaces: DirectoryWorkspaces, repo: Path, tmp_path: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, "rm README.md; rm -r src; echo 1 > one; mkdir closed; chmod 0 closed")
    assert made.mount.upper is not None
    assert stat.S_ISCHR((made.mount.upper / "src").lstat().st_mode)
    assert (made.mount.upper / "src").lstat().st_uid != os.geteuid()
    changes = {c.path: (c.change, c.binary) for c in await reader().list_changes(made.mount)}
    assert changes.pop("closed") == ("added", True)
    assert changes["README.md"] == ("deleted", False)
    assert b"Binary files /dev/null and b/closed differ" in await reader().unified_patch(made.mount)

    again = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert again == made
    await delete_tree(made.home / "seen")
    await agent(made, "rmdir closed; cat one; echo back > README.md")
    await check(made, repo, tmp_path)
    await workspaces.discard(ID)
    assert list((tmp_path / "state" / "subagents").iterdir()) == []
    assert read(repo) == REPO


def random_edits(choice: random.Random) -> str:
    names = [
        "README.md",
        "run.sh",
        "link",
        "src",
        "src/a.py",
        "src/deep",
        "src/deep/er",
        "docs",
        "docs/img",
        "keep",
        "keep/me",
        "new",
        "new/sub",
        "src/deep/er/x",
        "docs/index.md",
    ]
    commands = [
        "rm -rf {0}",
        "mkdir -p {0}",
        "echo {2} > {0}",
        "echo {2} >> {0}",
        "ln -sfn nowhere-{2} {0}",
        "chmod a+x {0}",
        "chmod a-x {0}/../run.sh",
        "mv -T {0} {1}",
        "cp -a {0} {1}",
        "touch -h {0}",
        "rm -rf {0} && cp -a {1} {0}",
    ]
    lines = []
    for number in range(60):
        command = choice.choice(commands).format(choice.choice(names), choice.choice(names), number)
        # Any of them may fail; a directory that lost its x bit would only be in the way.
        lines.append(f"{{ {command}; }} 2>/dev/null || true; find . -type d ! -perm -u=rwx -exec chmod u+rwx {{}} +")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(6))
async def test_random_edits(workspaces: DirectoryWorkspaces, repo: Path, tmp_path: Path, seed: int) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, random_edits(random.Random(seed)))
    await check(made, repo, tmp_path)
    await workspaces.discard(ID)
