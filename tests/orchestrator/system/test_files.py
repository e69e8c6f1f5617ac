"""Files that are there whole or not at all, and files that nobody else can have written."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.system.files import UntrustedFileError, create_private, read_private, write_atomic


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def narrow_umask(tmp_path: Path) -> Iterator[None]:
    """A mask that takes every right away; the test's directory is made before it holds."""
    before = os.umask(0o777)
    yield
    os.umask(before)


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with path.open() as reader:
        write_atomic(path, b"new")
        assert reader.read() == "old"
    assert path.read_bytes() == b"new"
    assert (mode_of(path), names(tmp_path)) == (0o600, ["a"])


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    (tmp_path / "a").symlink_to("other")
    write_atomic(tmp_path / "a", b"new")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "other").read_text()) == (b"new", "other")


@pytest.mark.usefixtures("narrow_umask")
def test_a_new_file_is_whole_private_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "a"
    create_private(path, b"first")
    with pytest.raises(FileExistsError):
        create_private(path, b"second")
    assert (read_private(path, limit=100), mode_of(path), names(tmp_path)) == (b"first", 0o600, ["a"])


def test_a_new_file_is_not_put_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "a", b"x")
    assert names(tmp_path) == ["a"]


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    create_private(tmp_path / "a", b"123456")
    assert read_private(tmp_path / "a", limit=3) == b"123"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610])
def test_what_others_can_get_at_is_not_trusted(tmp_path: Path, mode: int) -> None:
    create_private(tmp_path / "a", b"x")
    (tmp_path / "a").chmod(mode)
    with pytest.raises(UntrustedFileError, match="chmod 600"):
        read_private(tmp_path / "a", limit=10)


def test_links_directories_and_pipes_are_not_trusted(tmp_path: Path) -> None:
    create_private(tmp_path / "a", b"x")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UntrustedFileError, match="symbolic link"):
        read_private(tmp_path / "link", limit=10)
    for name in ("pipe", "."):
        with pytest.raises(UntrustedFileError, match="no regular file"):
            read_private(tmp_path / name, limit=10)
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none", limit=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_trusted(tmp_path: Path) -> None:
    create_private(tmp_path / "a", b"x")
    os.chown(tmp_path / "a", 12345, 12345)
    with pytest.raises(UntrustedFileError, match="belongs to uid 12345"):
        read_private(tmp_path / "a", limit=10)
