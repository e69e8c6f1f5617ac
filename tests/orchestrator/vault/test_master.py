"""Where the master key may come from, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.config.environment import vault_place
from orchestrator.config.models import Config, VaultConfig
from orchestrator.errors import ConflictError, VaultUnavailableError
from orchestrator.vault import KeySource, MasterKey
from orchestrator.vault.master import read_key, write_key
from tests.orchestrator.vault.kit import make_key, paths_in, place_of


def test_without_file_and_variable_there_is_no_vault(tmp_path: Path) -> None:
    assert KeySource.find(place_of(paths_in(tmp_path))) is None
    assert KeySource.find(place_of(paths_in(tmp_path), PODMENTOR_VAULT_KEY="")) is None


def test_the_file_in_the_state_directory_is_found(tmp_path: Path) -> None:
    key = make_key(paths_in(tmp_path))
    found = KeySource.find(place_of(paths_in(tmp_path)))
    assert found is not None
    assert found.current() == key
    assert found.by_id(key.key_id) == key
    assert found.by_id("0" * 16) is None


def test_the_variable_comes_before_that_file_and_a_named_file_before_the_variable(tmp_path: Path) -> None:
    paths, other, named = paths_in(tmp_path), MasterKey.new(), MasterKey.new()
    make_key(paths)
    env = {"MY_KEY": other.to_text()}
    by_env = vault_place(Config(vault=VaultConfig(key_env="MY_KEY")), paths, env=env)
    assert KeySource(by_env).current() == other
    assert other.to_text() not in repr(by_env)
    write_key(tmp_path / "k" / "named", named)
    config = Config(vault=VaultConfig(key_file=tmp_path / "k" / "named", key_env="MY_KEY"))
    assert KeySource(vault_place(config, paths, env=env)).current() == named


def test_a_named_file_that_is_not_there_is_an_error_and_not_no_vault(tmp_path: Path) -> None:
    config = Config(vault=VaultConfig(key_file=tmp_path / "gone"))
    found = KeySource.find(vault_place(config, paths_in(tmp_path), env={}))
    assert found is not None
    with pytest.raises(VaultUnavailableError, match="podmentor vault init"):
        found.current()


def test_the_file_is_made_for_its_owner_alone_and_never_over_another(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_key(tmp_path / "a" / "key", MasterKey.new())
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConflictError):
        write_key(tmp_path / "a" / "key", MasterKey.new())
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConflictError):
        write_key(tmp_path / "link", MasterKey.new())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_file_that_others_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    write_key(tmp_path / "key", MasterKey.new())
    (tmp_path / "key").chmod(mode)
    with pytest.raises(VaultUnavailableError, match="chmod 600"):
        read_key(tmp_path / "key")


def test_links_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "key", MasterKey.new())
    (tmp_path / "link").symlink_to("key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(VaultUnavailableError, match="symbolic link"):
        read_key(tmp_path / "link")
    with pytest.raises(VaultUnavailableError, match="no regular file"):
        read_key(tmp_path / "pipe")
    with pytest.raises(VaultUnavailableError):
        read_key(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "key", MasterKey.new())
    os.chown(tmp_path / "key", 12345, 12345)
    with pytest.raises(VaultUnavailableError, match="belongs to uid 12345"):
        read_key(tmp_path / "key")


def test_a_file_cut_by_a_crash_beside_a_good_one_does_no_harm(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    key = make_key(paths)
    half = paths.vault_key.with_name("vault.key.new")
    half.write_text("pmvau")
    half.chmod(0o600)
    source = KeySource(place_of(paths))
    assert source.by_id(key.key_id) == key
    assert source.unsettled
    source.settle(key.key_id)
    assert not half.exists()


def test_the_key_after_this_one_comes_from_the_variable_with_next(tmp_path: Path) -> None:
    now, then = MasterKey.new(), MasterKey.new()
    env = {"PODMENTOR_VAULT_KEY": now.to_text(), "PODMENTOR_VAULT_KEY_NEXT": then.to_text()}
    source = KeySource(place_of(paths_in(tmp_path), **env))
    assert (source.current(), source.next(), source.by_id(then.key_id)) == (now, then, then)
    del env["PODMENTOR_VAULT_KEY_NEXT"]
    with pytest.raises(VaultUnavailableError, match="PODMENTOR_VAULT_KEY_NEXT"):
        KeySource(place_of(paths_in(tmp_path), **env)).next()
