"""The directories of conversations and runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import ConflictError, InvalidRequestError, StorageError
from orchestrator.workspace import DirectoryWorkspaces

ID = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32


class Deleter:
    """Removes trees as the runtime would, and remembers which."""

    def __init__(self, *, works: bool = True) -> None:
        self.deleted: list[Path] = []
        self._works = works

    async def __call__(self, path: Path) -> None:
        self.deleted.append(path)
        if self._works:
            await asyncio.to_thread(shutil.rmtree, path)


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    with tempfile.TemporaryDirectory(prefix="pm-") as short:  # sockets have short paths, and pytest's are long
        yield Paths(state_dir=tmp_path / "state", runtime_dir=Path(short) / "run")


@pytest.fixture
def deleter() -> Deleter:
    return Deleter()


@pytest.fixture
def workspaces(paths: Paths, deleter: Deleter) -> DirectoryWorkspaces:
    return DirectoryWorkspaces(paths, deleter)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "README").write_text("hello\n")
    return repo


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_it_is_what_the_runs_ask_for(workspaces: DirectoryWorkspaces) -> None:
    promised: Workspaces = workspaces
    assert promised is workspaces


async def test_an_overlay_has_home_upper_and_work_of_its_own(
    workspaces: DirectoryWorkspaces, paths: Paths, repo: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    base = paths.state_dir / "subagents" / ID
    assert made.home == base / "home"
    assert made.mount.mode == "overlay"
    assert (made.mount.source, made.mount.upper, made.mount.work) == (repo, base / "upper", base / "work")
    for directory in (base, base / "home", base / "upper", base / "work"):
        assert directory.is_dir()
        assert mode(directory) == 0o700
    assert made.mount == workspaces.mount_of(subagent_id=ID, source=repo, mode="overlay")


async def test_the_next_run_finds_what_the_last_one_left(
    workspaces: DirectoryWorkspaces, deleter: Deleter, repo: Path
) -> None:
    first = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert first.mount.upper is not None
    (first.mount.upper / "new").write_text("x")
    (first.home / "session").write_text("y")
    first.mount.upper.chmod(0)  # the agent owns the top of its workspace and may close it
    first.home.chmod(0o755)
    assert await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay") == first
    assert (first.mount.upper / "new").read_text() == "x"
    assert (first.home / "session").read_text() == "y"
    assert (mode(first.mount.upper), mode(first.home)) == (0o700, 0o700)
    assert deleter.deleted == []


async def test_an_empty_leftover_of_the_kernel_is_removed_without_help(
    workspaces: DirectoryWorkspaces, deleter: Deleter, repo: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert made.mount.work is not None
    (made.mount.work / "work").mkdir(mode=0)
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert list(made.mount.work.iterdir()) == []
    assert deleter.deleted == []


async def test_a_leftover_with_content_is_removed_with_the_rights_that_it_takes(
    workspaces: DirectoryWorkspaces, deleter: Deleter, repo: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert made.mount.work is not None
    (made.mount.work / "work").mkdir()
    (made.mount.work / "work" / "#1").write_text("half a copy")
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert deleter.deleted == [made.mount.work]
    assert list(made.mount.work.iterdir()) == []


async def test_without_a_repo_the_workspace_is_empty(workspaces: DirectoryWorkspaces, paths: Paths) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=None, mode="overlay")
    assert made.mount.source == paths.state_dir / "subagents" / ID / "empty"
    assert list(made.mount.source.iterdir()) == []
    assert await workspaces.prepare(subagent_id=ID, source=None, mode="overlay") == made
    assert await workspaces.prepare(subagent_id=ID, source=made.mount.source, mode="overlay") == made
    assert workspaces.mount_of(subagent_id=ID, source=None, mode="overlay") == made.mount


async def test_readonly_and_direct_have_no_upper(workspaces: DirectoryWorkspaces, paths: Paths, repo: Path) -> None:
    readonly = await workspaces.prepare(subagent_id=ID, source=repo, mode="readonly")
    direct = await workspaces.prepare(subagent_id=OTHER, source=repo, mode="direct")
    assert (readonly.mount.mode, readonly.mount.source, readonly.mount.upper) == ("readonly", repo, None)
    assert (direct.mount.mode, direct.mount.source, direct.mount.work) == ("direct", repo, None)
    assert sorted(p.name for p in paths.subagent_dir(ID).iterdir()) == ["home", "source.json"]
    with pytest.raises(InvalidRequestError, match="needs a repo"):
        await workspaces.prepare(subagent_id=OTHER, source=None, mode="direct")


async def test_a_link_is_resolved_once_and_for_all(workspaces: DirectoryWorkspaces, tmp_path: Path, repo: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(repo)
    first = await workspaces.prepare(subagent_id=ID, source=link, mode="overlay")
    assert first.mount.source == repo
    assert first.mount.upper is not None
    (first.mount.upper / "README").write_text("changed\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link.unlink()
    link.symlink_to(elsewhere)
    assert await workspaces.prepare(subagent_id=ID, source=link, mode="overlay") == first
    mount = workspaces.mount_of(subagent_id=ID, source=link, mode="overlay")
    assert [c.change for c in await workspaces.list_changes(mount)] == ["modified"]
    assert b"\n-hello\n+changed\n" in await workspaces.unified_patch(mount)


async def test_a_conversation_stays_on_its_repo(workspaces: DirectoryWorkspaces, tmp_path: Path, repo: Path) -> None:
    (tmp_path / "other").mkdir()
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    with pytest.raises(ConflictError, match=f"works on {repo}: start a new one"):
        await workspaces.prepare(subagent_id=ID, source=tmp_path / "other", mode="overlay")
    with pytest.raises(ConflictError, match="for an empty workspace"):
        await workspaces.prepare(subagent_id=ID, source=None, mode="overlay")
    await workspaces.prepare(subagent_id=OTHER, source=None, mode="overlay")
    with pytest.raises(ConflictError, match="works without a repo"):
        await workspaces.prepare(subagent_id=OTHER, source=repo, mode="overlay")


@pytest.mark.parametrize("bad", ["", "..", "A" * 32, "a" * 31, "a" * 33, "../" + "a" * 29, "a" * 32 + "\n", "a/" * 16])
async def test_ids_are_checked_before_they_become_paths(
    workspaces: DirectoryWorkspaces, paths: Paths, bad: str
) -> None:
    with pytest.raises(InvalidRequestError):
        await workspaces.prepare(subagent_id=bad, source=None, mode="overlay")
    with pytest.raises(InvalidRequestError):
        await workspaces.discard(bad)
    with pytest.raises(InvalidRequestError):
        await workspaces.make_control_dir(bad, "x")
    with pytest.raises(InvalidRequestError):
        await workspaces.remove_control_dir(bad)
    with pytest.raises(InvalidRequestError):
        workspaces.mount_of(subagent_id=bad, source=None, mode="overlay")
    assert not paths.state_dir.exists()


async def test_a_planted_link_is_not_followed(
    workspaces: DirectoryWorkspaces, paths: Paths, tmp_path: Path, repo: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    paths.subagent_dir(ID).mkdir(parents=True)
    (paths.subagent_dir(ID) / "home").symlink_to(victim)
    with pytest.raises(StorageError, match="is not a directory"):
        await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert mode(victim) == 0o755


async def test_a_damaged_record_is_told(workspaces: DirectoryWorkspaces, paths: Paths, repo: Path) -> None:
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    (paths.subagent_dir(ID) / "source.json").write_text("{")
    with pytest.raises(StorageError, match=r"source\.json is damaged"):
        await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")


async def test_discard_removes_everything_and_may_be_repeated(
    workspaces: DirectoryWorkspaces, paths: Paths, deleter: Deleter, repo: Path, tmp_path: Path
) -> None:
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    assert made.mount.work is not None
    (made.mount.work / "work").mkdir(mode=0)
    outside = tmp_path / "outside"
    outside.write_text("keep")
    (made.home / "link").symlink_to(outside)
    (made.home / "dirlink").symlink_to(repo)
    await workspaces.discard(ID)
    await workspaces.discard(ID)
    assert not paths.subagent_dir(ID).exists()
    assert outside.read_text() == "keep"
    assert (repo / "README").exists()
    assert deleter.deleted == []


async def test_discard_asks_for_help_where_its_own_rights_end(paths: Paths, repo: Path) -> None:
    deleted: list[Path] = []

    async def rm(path: Path) -> None:
        deleted.append(path)
        process = await asyncio.create_subprocess_exec("rm", "-rf", "--", str(path))
        assert await process.wait() == 0

    workspaces = DirectoryWorkspaces(paths, rm)
    made = await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")
    # deeper than plain removal goes
    fd = os.open(made.home, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)

    await workspaces.discard(ID)
    assert deleted == [paths.subagent_dir(ID)]
    assert not paths.subagent_dir(ID).exists()


async def test_what_cannot_be_removed_is_told(paths: Paths, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces = DirectoryWorkspaces(paths, Deleter(works=False))
    await workspaces.prepare(subagent_id=ID, source=repo, mode="overlay")

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refused)
    with pytest.raises(StorageError, match="could not be removed"):
        await workspaces.discard(ID)


async def test_a_control_dir_holds_the_prompt_for_us_alone(workspaces: DirectoryWorkspaces, paths: Paths) -> None:
    directory = await workspaces.make_control_dir(ID, "fix ünïcode \ud800 please\n")
    assert directory == paths.runtime_dir / ID
    assert (mode(directory), mode(directory / "prompt")) == (0o700, 0o600)
    assert (directory / "prompt").read_text() == "fix ünïcode ? please\n"
    assert [p.name for p in directory.iterdir()] == ["prompt"]
    await workspaces.make_control_dir(ID, "again")
    assert (directory / "prompt").read_text() == "again"


async def test_a_control_dir_goes_with_its_sockets(workspaces: DirectoryWorkspaces) -> None:
    directory = await workspaces.make_control_dir(ID, "x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "gateway.sock"))
        await workspaces.remove_control_dir(ID)
    await workspaces.remove_control_dir(ID)
    assert not directory.exists()


async def test_a_control_dir_that_is_a_link_loses_the_link_only(
    workspaces: DirectoryWorkspaces, paths: Paths, repo: Path
) -> None:
    paths.runtime_dir.mkdir()
    (paths.runtime_dir / ID).symlink_to(repo)
    await workspaces.remove_control_dir(ID)
    assert (repo / "README").exists()
    assert not os.path.lexists(paths.runtime_dir / ID)


async def test_a_runtime_dir_that_is_too_long_for_sockets_is_told(tmp_path: Path) -> None:
    long = DirectoryWorkspaces(Paths(state_dir=tmp_path, runtime_dir=Path("/tmp") / ("x" * 80)), Deleter())
    with pytest.raises(StorageError, match=r"set storage\.runtime_dir"):
        await long.make_control_dir(ID, "x")


async def test_the_sweep_sees_only_what_looks_like_a_run(
    workspaces: DirectoryWorkspaces, paths: Paths, repo: Path
) -> None:
    assert await workspaces.stale_control_dirs(set()) == []
    for run in (ID, OTHER):
        await workspaces.make_control_dir(run, "x")
    (paths.runtime_dir / "relay").mkdir()
    (paths.runtime_dir / ("e" * 32)).write_text("a file")
    (paths.runtime_dir / ("d" * 32)).symlink_to(repo)
    assert await workspaces.stale_control_dirs(set()) == [ID, OTHER]
    assert await workspaces.stale_control_dirs({OTHER}) == [ID]
