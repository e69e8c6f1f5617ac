"""Taking changes out of real overlays: the kernel's own whiteouts and opaque directories."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from orchestrator.contract.changes import ApplyRequest, ChangeSelection
from orchestrator.errors import ConflictError
from orchestrator.workspace import DirectoryWorkspaces
from tests.orchestrator.workspace.trees import Tree, make, read, without_empty
from tests.podman.test_workspace import ID, REPO, agent, delete_tree, random_edits, repo, workspaces

pytestmark = pytest.mark.podman
__all__ = ["repo", "workspaces"]

ALL = ChangeSelection(ignored=True)
RUN = "1" * 32


async def apply(workspaces: DirectoryWorkspaces, repo: Path, **more: object) -> None:
    mount = workspaces.mount_of(subagent_id=ID, source=repo, mode="overlay")
    request = ApplyRequest(**{"selection": ALL, **more})  # type: ignore[arg-type]
    async with workspaces.exclusive(ID):
        await workspaces.apply(mount, request, author="agent")


async def test_every_kind_of_change_is_applied_and_the_next_run_sees_the_repo(
    workspaces: DirectoryWorkspaces, repo: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(
        made,
        r"""
        sed -i s/world/there/ README.md
        chmod -x run.sh
        rm link && mkdir link && echo in > link/inner
        rm -r src && mkdir src && echo 1 > src/new
        rm -r docs && ln -s src docs
        mv keep/me keep/you
        head -c 100000 /dev/urandom > blob
        mkfifo pipe
        """,
    )
    seen = {k: v for k, v in read_without_pipes(made.home / "seen").items() if k != b".git"}
    await workspaces.run_ended(made.mount, run_id=RUN)
    await apply(workspaces, repo)
    assert read(repo) == without_empty(seen)
    (repo / "README.md").write_text("host\n")
    (repo / "src" / "host").write_text("host\n")
    assert [c.path for c in await workspaces.list_changes(made.mount)] == ["pipe"]
    await asyncio.to_thread((made.mount.upper or repo).joinpath("pipe").unlink)
    await delete_tree(made.home / "seen")
    again = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(again, "cat README.md src/host src/new")
    assert read(again.home / "seen") == read(repo)


def read_without_pipes(directory: Path) -> Tree:
    (directory / "pipe").unlink(missing_ok=True)
    return read(directory)


async def test_a_conflict_in_a_real_overlay(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, "echo agent >> README.md; rm src/a.py; rm -r docs")
    await workspaces.run_ended(made.mount, run_id=RUN)
    (repo / "README.md").write_text("host\nhello\nworld\n")
    (repo / "src" / "a.py").write_text("host\n")
    with pytest.raises(ConflictError) as caught:
        await apply(workspaces, repo)
    assert {one["path"] for one in caught.value.details["files"]} == {"README.md", "src/a.py"}
    await apply(workspaces, repo, selection=ChangeSelection(paths=("README.md",)), on_conflict="merge")
    assert (repo / "README.md").read_text() == "host\nhello\nworld\nagent\n"
    await apply(workspaces, repo, on_conflict="theirs")
    assert not (repo / "src" / "a.py").exists()
    assert not (repo / "docs").exists()
    assert await workspaces.list_changes(made.mount) == []


@pytest.mark.parametrize("seed", range(4))
async def test_random_edits_are_applied(workspaces: DirectoryWorkspaces, repo: Path, seed: int) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, random_edits(random.Random(100 + seed)))
    seen = read(made.home / "seen")
    await workspaces.run_ended(made.mount, run_id=RUN)
    await apply(workspaces, repo)
    assert read(repo) == without_empty(seen)
    assert await workspaces.list_changes(made.mount) == []


async def test_changes_are_dropped_with_the_kernels_leftovers(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(
        made, "rm -r src docs; mkdir src; echo 1 > src/a.py; rm README.md; mkdir shut; echo x > shut/x; chmod 0 shut"
    )
    async with workspaces.exclusive(ID):
        assert await workspaces.discard_changes(made.mount, ("src/b.py", "README.md", "shut")) == [
            "README.md",
            "shut",
            "src/b.py",
        ]
    left = {c.path for c in await workspaces.list_changes(made.mount)}
    assert left == {"src/a.py", "src/deep/er/x", "docs/index.md", "docs/img/logo.svg"}
    await delete_tree(made.home / "seen")
    await agent(made, "cat src/b.py README.md; test ! -e docs; test ! -e shut; test ! -e src/deep")
    async with workspaces.exclusive(ID):
        await workspaces.discard_changes(made.mount)
    assert await workspaces.list_changes(made.mount) == []
    await delete_tree(made.home / "seen")
    await agent(made, "cat src/deep/er/x docs/index.md")
    assert read(made.home / "seen") == read(repo)


async def test_a_repo_of_100_000_files(workspaces: DirectoryWorkspaces, tmp_path: Path) -> None:
    repo = tmp_path / "large"
    await asyncio.to_thread(make_large, repo, 100_000)
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    (made.home / "seen").write_text("")  # a file: what the agent sees is not copied
    await agent(made, "echo changed > d7/7; rm d8/8; rm -r d9; echo new > new")
    await workspaces.run_ended(made.mount, run_id=RUN)
    found = {c.path: c.change for c in await workspaces.list_changes(made.mount)}
    assert (found.pop("d7/7"), found.pop("d8/8"), found.pop("new")) == ("modified", "deleted", "added")
    assert set(found.values()) == {"deleted"}
    assert len(found) == 1000
    await apply(workspaces, repo)
    assert not (repo / "d9").exists()
    assert (repo / "d7" / "7").read_text() == "changed\n"


def make_large(repo: Path, files: int) -> None:
    for number in range(100):
        (repo / f"d{number}").mkdir(parents=True)
    for number in range(files):
        (repo / f"d{number % 100}" / str(number)).write_bytes(b"")


async def test_a_private_copy_below_the_overlay(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="copy")
    (repo / "README.md").write_text("host\n")
    await agent(made, "grep -q hello README.md; echo agent > README.md; rm -r docs")
    await workspaces.run_ended(made.mount, run_id=RUN)
    async with workspaces.exclusive(ID):
        with pytest.raises(ConflictError):
            await workspaces.apply(made.mount, ApplyRequest(), author="agent")
        await workspaces.apply(made.mount, ApplyRequest(on_conflict="theirs"), author="agent")
    assert (repo / "README.md").read_text() == "agent\n"
    assert not (repo / "docs").exists()
    await delete_tree(made.home / "seen")
    again = await workspaces.prepare(subagent_id=ID, source=repo, mode="copy")
    await agent(again, "grep -q agent README.md; test ! -e docs")


async def test_a_workspace_goes_back_to_the_end_of_an_earlier_run(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    first, second = "a" * 32, "b" * 32
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, "rm -r docs; rm -r src && mkdir src && echo 1 > src/new; echo x > keep/me")
    seen = read(made.home / "seen")
    await workspaces.run_ended(made.mount, run_id=first)
    await delete_tree(made.home / "seen")
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, "rm -rf src keep; mkdir docs; echo again > docs/index.md")
    await workspaces.run_ended(made.mount, run_id=second)
    assert (await workspaces.changes_of_run(made.mount, second))["docs/index.md"] == "changed"
    async with workspaces.exclusive(ID):
        await workspaces.rollback(made.mount, first)
    await delete_tree(made.home / "seen")
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    await agent(made, "test ! -e docs")
    assert without_empty(read(made.home / "seen")) == without_empty(seen)


async def test_clone_run_and_apply_within_a_second(workspaces: DirectoryWorkspaces, tmp_path: Path) -> None:
    """Nothing that was written before a run began is a conflict, however shortly before; and again after an apply."""
    repo = tmp_path / "cloned"
    repo.mkdir()
    make(repo, REPO)
    for turn in range(5):
        made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
        (made.home / "seen").write_text("")  # a file: what the agent sees is not copied
        await agent(made, f"echo {turn} >> README.md; rm -rf src; mkdir src; echo {turn} > src/a.py")
        await workspaces.run_ended(made.mount, run_id=RUN)
        await apply(workspaces, repo, on_conflict="merge" if turn % 2 else "refuse")
        assert (repo / "README.md").read_text().endswith(f"{turn}\n")
        assert (repo / "src" / "a.py").read_text() == f"{turn}\n"


async def test_a_file_changed_while_the_agent_worked_is_a_conflict(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    (repo / "README.md").write_text("host\n")
    await agent(made, "echo agent >> README.md; echo agent >> src/a.py")
    await workspaces.run_ended(made.mount, run_id=RUN)
    with pytest.raises(ConflictError) as caught:
        await apply(workspaces, repo)
    assert [one["path"] for one in caught.value.details["files"]] == ["README.md"]
