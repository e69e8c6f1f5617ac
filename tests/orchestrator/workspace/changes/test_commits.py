"""The agent's own commits: read as data, exported so that git takes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import NotFoundError
from tests.orchestrator.workspace.changes.test_patch import git, mount, upper
from tests.orchestrator.workspace.overlay import export_commits, list_commits

__all__ = ["mount"]


@pytest.fixture
def repo(mount: WorkspaceMount) -> Path:
    git(mount.source, "init", "-q", "-b", "main")
    (mount.source / "a").write_text("a\n")
    git(mount.source, "add", "-A")
    git(mount.source, "commit", "-q", "-m", "The first")
    return mount.source


def agent_commits(mount: WorkspaceMount, tmp_path: Path, *messages: str) -> Path:
    """What an overlay's upper would hold after an agent committed: the whole of .git (a superset of it does no harm)."""
    work = tmp_path / "agent"
    shutil.copytree(mount.source, work)
    for number, message in enumerate(messages):
        (work / f"n{number}").write_bytes(b"%d\n\0" % number)
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", message)
    shutil.copytree(work / ".git", upper(mount) / ".git")
    return work


async def test_commits_are_listed_newest_first(mount: WorkspaceMount, repo: Path, tmp_path: Path) -> None:
    assert await list_commits(mount) == []
    work = agent_commits(mount, tmp_path, "Second", "Third: \xe9\n\nbody")
    third, second = await list_commits(mount)
    assert (second.subject, second.refs, second.author) == ("Second", (), "A <a@b>")
    assert (third.subject, third.refs) == ("Third: \xe9", ("HEAD", "refs/heads/main"))
    assert third.parents == (second.commit,)
    assert third.commit == git(work, "rev-parse", "HEAD").decode().strip()


async def test_a_bundle_and_patches_bring_them_into_the_repo(mount: WorkspaceMount, repo: Path, tmp_path: Path) -> None:
    work = agent_commits(mount, tmp_path, "Second", "Third")
    tip = git(work, "rev-parse", "HEAD")
    (tmp_path / "b").write_bytes(await export_commits(mount, "bundle"))
    patches = await export_commits(mount, "patches")
    git(repo, "fetch", "-q", str(tmp_path / "b"), "refs/heads/*:refs/remotes/agent/*")
    assert git(repo, "rev-parse", "refs/remotes/agent/main") == tip
    git(repo, "am", "-q", stdin=patches)
    assert git(repo, "rev-parse", "HEAD^{tree}") == git(work, "rev-parse", "HEAD^{tree}")
    assert await list_commits(mount) == []  # the repo has them now


async def test_a_repository_that_the_agent_made_itself(mount: WorkspaceMount, tmp_path: Path) -> None:
    work = tmp_path / "agent"
    work.mkdir()
    git(work, "init", "-q", "-b", "topic/one")
    (work / "x").write_text("x\n")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "Root")
    git(work, "gc", "-q")
    shutil.copytree(work / ".git", upper(mount) / ".git")
    (root,) = await list_commits(mount)
    assert root.refs == ("HEAD", "refs/heads/topic/one")
    assert b"Subject: [PATCH] Root" in await export_commits(mount, "patches")


async def test_no_commits_no_file(mount: WorkspaceMount, repo: Path, tmp_path: Path) -> None:
    agent_commits(mount, tmp_path)
    assert await list_commits(mount) == []
    with pytest.raises(NotFoundError):
        await export_commits(mount, "bundle")


async def test_nothing_in_the_agents_repository_is_run_or_followed(
    mount: WorkspaceMount, repo: Path, tmp_path: Path
) -> None:
    agent_commits(mount, tmp_path, "Second")
    inside = upper(mount) / ".git"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    (inside / "config").write_text(
        f"[core]\n\tfsmonitor = {trap}\n\tpager = {trap}\n[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {trap}\n"
        f"[diff]\n\texternal = {trap}\n[alias]\n\trev-list = !{trap}\n"
    )
    secret = tmp_path / "secret"
    secret.mkdir()
    git(secret, "init", "-q")
    (secret / "s").write_text("top secret\n")
    git(secret, "add", "-A")
    git(secret, "commit", "-q", "-m", "Secret")
    hidden = git(secret, "rev-parse", "HEAD").decode().strip()
    (inside / "objects" / "info").mkdir(exist_ok=True)
    (inside / "objects" / "info" / "alternates").write_text(f"{secret}/.git/objects\n")
    (inside / "refs" / "heads" / "stolen").write_text(hidden + "\n")
    (inside / "refs" / "heads" / "link").symlink_to(secret / ".git" / "refs" / "heads")
    os.mkfifo(inside / "objects" / "pack" / f"pack-{'0' * 40}.pack")
    assert [c.subject for c in await list_commits(mount)] == ["Second"]
    assert b"top secret" not in await export_commits(mount, "patches")
    assert not (tmp_path / "ran").exists()
