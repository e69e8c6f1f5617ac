"""A private copy under the overlay: the repo may change as it likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.contract.changes import ApplyRequest
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import ConflictError, StorageError
from orchestrator.workspace import DirectoryWorkspaces
from orchestrator.workspace.setup.prepare import make_copy
from tests.orchestrator.workspace.overlay import no_delete
from tests.orchestrator.workspace.trees import File, Link, Tree, fake_whiteout, make, read, whiteout

ID = "0" * 32
OLD: Tree = {
    b"a": File(b"1\n2\n3\n4\n5\n"),
    b"b": File(b"b\n"),
    b"run": File(b"", executable=True),
    b"link": Link(b"/nowhere"),
    b"odd \xff\n": File(b""),
    b"d": {b"x": File(b"x\n")},
}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    make(tmp_path / "repo", OLD)
    return tmp_path / "repo"


@pytest.fixture
def workspaces(tmp_path: Path) -> DirectoryWorkspaces:
    made = DirectoryWorkspaces(Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"), no_delete)
    made._whiteout = fake_whiteout
    return made


async def prepared(workspaces: DirectoryWorkspaces, repo: Path) -> WorkspaceMount:
    return (await workspaces.prepare(subagent_id=ID, source=repo, mode="copy")).mount


async def apply(workspaces: DirectoryWorkspaces, mount: WorkspaceMount, **more: object) -> None:
    request = ApplyRequest(**more)  # type: ignore[arg-type]
    await workspaces.apply(mount, request, author="agent")


def agent(mount: WorkspaceMount) -> None:
    assert mount.upper is not None
    (mount.upper / "a").write_bytes(b"1\n2\nthree\n4\n5\n")
    (mount.upper / "new").write_bytes(b"new\n")
    whiteout(mount.upper / "b")


async def test_the_overlay_lies_over_a_copy_that_stays_as_it_is(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    mount = await prepared(workspaces, repo)
    assert (mount.mode, mount.target) == ("overlay", repo)
    assert read(mount.source) == OLD
    (repo / "a").write_text("host\n")
    assert await prepared(workspaces, repo) == mount
    assert workspaces.mount_of(subagent_id=ID, source=repo, mode="copy") == mount
    assert read(mount.source) == OLD
    assert await workspaces.list_changes(mount) == []


async def test_applying_brings_repo_and_copy_along(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    mount = await prepared(workspaces, repo)
    agent(mount)
    await workspaces.run_ended(mount, run_id="1" * 32)
    (repo / "d" / "x").write_text("host\n")
    await apply(workspaces, mount)
    now = {k: v for k, v in OLD.items() if k != b"b"} | {b"a": File(b"1\n2\nthree\n4\n5\n"), b"new": File(b"new\n")}
    assert read(repo) == now | {b"d": {b"x": File(b"host\n")}}
    assert read(mount.source) == now
    assert await workspaces.list_changes(mount) == []


async def test_conflicts_are_exact_and_merges_know_the_base(workspaces: DirectoryWorkspaces, repo: Path) -> None:
    mount = await prepared(workspaces, repo)
    agent(mount)
    (repo / "a").write_bytes(b"1\n2\n3\n4\n5\nhost\n")  # no run has ended: the copy is the base all the same
    with pytest.raises(ConflictError) as caught:
        await apply(workspaces, mount)
    assert [one["path"] for one in caught.value.details["files"]] == ["a"]
    await apply(workspaces, mount, on_conflict="merge")
    merged = File(b"1\n2\nthree\n4\n5\nhost\n")
    assert (read(repo)[b"a"], read(mount.source)[b"a"]) == (merged, merged)
    assert await workspaces.list_changes(mount) == []


async def test_a_repo_that_cannot_be_copied_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be copied"):
        make_copy(tmp_path / "missing", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
