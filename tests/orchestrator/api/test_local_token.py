"""The local token's file, and files that somebody else has put in its place."""

import os
import re
import threading
from pathlib import Path

import pytest

from orchestrator.api.local_token import ensure_local_token
from orchestrator.config.models import Paths
from orchestrator.errors import StorageError

GOOD = "pml_" + "A" * 43


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """The state directory exists."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run")


def test_it_is_made_once_for_the_owner_only(paths: Paths) -> None:
    old = os.umask(0)
    try:
        token = ensure_local_token(paths)
    finally:
        os.umask(old)
    assert re.fullmatch(r"pml_[A-Za-z0-9_-]{43}", token)
    assert paths.token_file.stat().st_mode & 0o777 == 0o600
    assert ensure_local_token(paths) == token
    assert [path.name for path in paths.state_dir.iterdir()] == ["local-token"]


def test_the_state_directory_is_made_too(tmp_path: Path) -> None:
    paths = Paths(state_dir=tmp_path / "new" / "state", runtime_dir=tmp_path)
    ensure_local_token(paths)
    assert paths.state_dir.stat().st_mode & 0o777 == 0o700


def test_all_who_start_at_once_get_the_same(paths: Paths) -> None:
    barrier, found = threading.Barrier(8), []

    def work() -> None:
        barrier.wait(10)
        found.append(ensure_local_token(paths))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_symbolic_link_is_refused(paths: Paths, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text(GOOD)
    target.chmod(0o600)
    paths.token_file.symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        ensure_local_token(paths)


def test_a_dangling_link_is_not_followed_to_make_a_file(paths: Paths, tmp_path: Path) -> None:
    paths.token_file.symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="symbolic link"):
        ensure_local_token(paths)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_file_that_others_can_touch_is_refused(paths: Paths, mode: int) -> None:
    paths.token_file.write_text(GOOD)
    paths.token_file.chmod(mode)
    with pytest.raises(StorageError, match=f"{mode:04o}"):
        ensure_local_token(paths)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(paths: Paths) -> None:
    paths.token_file.write_text(GOOD)
    paths.token_file.chmod(0o600)
    os.chown(paths.token_file, 12345, 12345)
    with pytest.raises(StorageError, match="uid 12345"):
        ensure_local_token(paths)


def test_something_that_is_no_file_is_refused_without_hanging(paths: Paths) -> None:
    os.mkfifo(paths.token_file, 0o600)
    with pytest.raises(StorageError, match="regular file"):
        ensure_local_token(paths)
    paths.token_file.unlink()
    paths.token_file.mkdir(mode=0o700)
    with pytest.raises(StorageError):
        ensure_local_token(paths)


@pytest.mark.parametrize("content", ["", "\n", "secret", GOOD + "A", GOOD[:-1], GOOD + "\nmore", "\xff" * 10])
def test_other_content_is_refused(paths: Paths, content: str) -> None:
    paths.token_file.write_text(content)
    paths.token_file.chmod(0o600)
    with pytest.raises(StorageError, match="does not hold a token"):
        ensure_local_token(paths)


def test_no_message_shows_what_the_file_holds(paths: Paths) -> None:
    paths.token_file.write_text("topsecret")
    paths.token_file.chmod(0o600)
    with pytest.raises(StorageError) as caught:
        ensure_local_token(paths)
    assert "topsecret" not in str(caught.value)
