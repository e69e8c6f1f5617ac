import os
import stat
from pathlib import Path

import pytest

from orchestrator.config import paths as module
from orchestrator.config.models import Config
from orchestrator.config.paths import plan_paths, resolve_paths
from orchestrator.errors import ConfigError


def config(**storage: Path) -> Config:
    return Config.model_validate({"storage": storage})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("p")


def test_the_order_of_places() -> None:
    home, xdg = {"HOME": "/h"}, {"XDG_STATE_HOME": "/xs", "XDG_RUNTIME_DIR": "/xr"}
    assert plan_paths(Config(), env=home).state_dir == Path("/h/.local/state/podmentor")
    assert plan_paths(Config(), env=home).runtime_dir == Path(f"/tmp/podmentor-{os.geteuid()}")
    assert plan_paths(Config(), env=home | xdg).state_dir == Path("/xs/podmentor")
    assert plan_paths(Config(), env=home | xdg).runtime_dir == Path("/xr/podmentor")
    assert plan_paths(Config(), env=home | xdg | {"PODMENTOR_STATE": "/s"}).state_dir == Path("/s")
    both = plan_paths(config(state_dir=Path("/c"), runtime_dir=Path("/r")), env=home | xdg | {"PODMENTOR_STATE": "/s"})
    assert (both.state_dir, both.runtime_dir) == (Path("/c"), Path("/r"))


def test_relative_xdg_values_do_not_count() -> None:
    assert plan_paths(Config(), env={"HOME": "/h", "XDG_STATE_HOME": "rel"}).state_dir == Path(
        "/h/.local/state/podmentor"
    )


def test_two_state_directories_never_share_a_socket() -> None:
    env = {"HOME": "/h", "XDG_RUNTIME_DIR": "/xr"}
    usual = plan_paths(Config(), env=env)
    one, two = (plan_paths(config(state_dir=Path(p)), env=env) for p in ("/one", "/two"))
    assert len({usual.api_socket, one.api_socket, two.api_socket}) == 3
    assert one.runtime_dir.parent == Path("/xr")


def test_no_home_at_all() -> None:
    with pytest.raises(ConfigError, match="no place for state"):
        plan_paths(Config(), env={})


def test_directories_are_made_private(short: Path) -> None:
    made = resolve_paths(config(state_dir=short / "a/b/s", runtime_dir=short / "r"), env={})
    assert mode(made.state_dir) == mode(made.runtime_dir) == 0o700
    assert resolve_paths(config(state_dir=short / "a/b/s", runtime_dir=short / "r"), env={}) == made


def test_a_directory_of_ours_that_is_open_gets_closed(short: Path) -> None:
    (short / "s").mkdir(mode=0o755)
    resolve_paths(config(state_dir=short / "s", runtime_dir=short / "r"), env={})
    assert mode(short / "s") == 0o700


def test_symbolic_links_and_files_are_refused(short: Path) -> None:
    (short / "real").mkdir()
    (short / "s").symlink_to(short / "real")
    with pytest.raises(ConfigError, match="symbolic link"):
        resolve_paths(config(state_dir=short / "s", runtime_dir=short / "r"), env={})
    (short / "f").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        resolve_paths(config(state_dir=short / "f", runtime_dir=short / "r"), env={})


def test_a_foreign_directory_is_refused(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / "s").mkdir()
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        resolve_paths(config(state_dir=short / "s", runtime_dir=short / "r"), env={})


def test_the_directory_in_tmp_must_have_been_private_before(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = short / "podmentor-1"
    monkeypatch.setattr(module, "_runtime_base", lambda env: shared)
    env = {"XDG_STATE_HOME": str(short)}
    assert resolve_paths(Config(), env=env).runtime_dir == shared
    assert mode(shared) == 0o700
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="open to others"):
        resolve_paths(Config(), env=env)


def test_a_runtime_directory_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long for sockets"):
        plan_paths(config(state_dir=Path("/s"), runtime_dir=Path("/r" + "x" * 60)), env={})


def test_state_inside_a_repo_is_refused(short: Path) -> None:
    repo = short / "repo"
    repo.mkdir()
    bad = Config.model_validate(
        {"repos": {"main": repo}, "storage": {"state_dir": repo / ".state", "runtime_dir": "/r"}}
    )
    with pytest.raises(ConfigError, match="inside the repo main"):
        plan_paths(bad, env={})
    (short / "link").symlink_to(repo)
    linked = Config.model_validate(
        {"repos": {"main": short / "link"}, "storage": {"state_dir": repo / "s", "runtime_dir": "/r"}}
    )
    with pytest.raises(ConfigError, match="inside the repo"):
        plan_paths(linked, env={})
