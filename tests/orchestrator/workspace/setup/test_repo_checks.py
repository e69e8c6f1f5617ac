"""Which repos and state directories are taken, and what is said about the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.workspace.setup import repo_checks as module
from orchestrator.workspace.setup.repo_checks import check_overlay_home, checked_source, file_system_of

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


def check(path: Path, tmp_path: Path, mode: str = "overlay") -> Path:
    return checked_source(path, forbidden=(tmp_path / "state", tmp_path / "run"), mode=mode)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "state" / "subagents").mkdir(parents=True)
    (tmp_path / "repo").mkdir()
    return tmp_path / "repo"


def test_a_directory_is_taken_by_its_real_path(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "link").symlink_to("repo")
    assert check(repo, tmp_path) == repo
    assert check(tmp_path / "link", tmp_path) == repo
    assert check(tmp_path / "repo" / ".." / "repo", tmp_path) == repo


def test_what_is_no_usable_directory_is_refused(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for path, words in [
        (Path("repo"), "must be an absolute path"),
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "dangling", "does not exist"),
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "file" / "x", "cannot be used|does not exist"),
        (tmp_path / "loop", "cannot be used"),
        (Path("/a\0b"), "NUL"),
    ]:
        with pytest.raises(InvalidRequestError, match=words):
            check(path, tmp_path)


def test_podmentors_own_directories_are_kept_out(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "into-state").symlink_to("state/subagents")
    for path in (tmp_path, Path("/"), tmp_path / "state", tmp_path / "state" / "subagents", tmp_path / "into-state"):
        with pytest.raises(InvalidRequestError, match="may not contain one another"):
            check(path, tmp_path)
    (tmp_path / "statement").mkdir()
    assert check(tmp_path / "statement", tmp_path).name == "statement"


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b"])
def test_paths_that_an_overlay_cannot_take_are_refused_with_a_way_out(tmp_path: Path, repo: Path, name: str) -> None:
    (repo / name).mkdir()
    with pytest.raises(InvalidRequestError, match=r"rename the directory.*'direct' or 'readonly'"):
        check(repo / name, tmp_path)
    assert check(repo / name, tmp_path, "readonly") == repo / name
    (tmp_path / "plain").symlink_to(repo / name)
    with pytest.raises(InvalidRequestError):
        check(tmp_path / "plain", tmp_path)


@not_root
def test_a_repo_that_we_may_not_read_or_write_is_refused(tmp_path: Path, repo: Path) -> None:
    (repo / "inner").mkdir()
    repo.chmod(0o500)
    assert check(repo, tmp_path) == repo
    with pytest.raises(InvalidRequestError, match="cannot be read and written"):
        check(repo, tmp_path, "direct")
    repo.chmod(0o400)
    with pytest.raises(InvalidRequestError, match="cannot be read by the user"):
        check(repo, tmp_path)
    with pytest.raises(InvalidRequestError, match="cannot be"):
        check(repo / "inner", tmp_path)
    repo.chmod(0o700)


def test_a_local_disk_can_hold_overlays(tmp_path: Path) -> None:
    check_overlay_home(tmp_path)
    assert os.listxattr(tmp_path) == []


@pytest.mark.parametrize("kind", ["overlay", "nfs4", "fuse.sshfs", "9p"])
def test_other_file_systems_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(module, "file_system_of", lambda _: kind)
    with pytest.raises(StorageError, match=rf"is on {kind}.*set storage\.state_dir"):
        check_overlay_home(tmp_path)


def test_a_file_system_without_attributes_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(StorageError, match="takes no extended attributes"):
        check_overlay_home(tmp_path)


def test_a_state_directory_with_option_characters_cannot(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    with pytest.raises(StorageError, match="contains ','"):
        check_overlay_home(tmp_path / "a,b")


def test_the_file_system_is_the_innermost_and_topmost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    here = str(tmp_path).encode()
    table.write_bytes(
        b"1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        b"2 1 0:5 / " + here + rb"/with\040space rw shared:1 - nfs server:/x rw" + b"\n"
        b"3 1 0:6 / " + here + b"/over rw - xfs /dev/sdb rw\n"
        b"4 3 0:7 / " + here + b"/over rw - overlay overlay rw\n"
        b"garbage\n"
    )
    assert file_system_of(tmp_path, table) == "ext4"
    assert file_system_of(tmp_path / "with space" / "in", table) == "nfs"
    assert file_system_of(tmp_path / "over", table) == "overlay"
    assert file_system_of(tmp_path / "overture", table) == "ext4"
    assert file_system_of(Path("/"))
