"""C20: the documented functions around a user's own HOME; C19: its source of the chain.  Nothing follows a link."""

from __future__ import annotations

import inspect
import os
import stat
from pathlib import Path

import pytest

from orchestrator.config.models import BackendConfig
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.types import AuthStatus
from orchestrator.credentials import byo_subscription
from orchestrator.credentials.byo_subscription import (
    Subscription,
    disconnect,
    get_home,
    is_home_primed,
    probe_with_home,
)
from orchestrator.credentials.homes import Homes
from orchestrator.errors import InvalidRequestError, StorageError
from tests.fakes.adapter import EchoAdapter

LOGIN = '{"token": "made-up"}'


class WithLogin(EchoAdapter):
    supports_byo_subscription = True
    credential_files = (".echo/login.json",)

    async def probe_auth(self, env: dict[str, str]) -> AuthStatus:
        return AuthStatus(installed=True, authenticated="HOME" in env, error=env["HOME"])


class Recorder:
    """An ``AuthProbe``."""

    def __init__(self) -> None:
        self.homes: list[Path] = []

    async def probe(self, *, adapter: BaseAdapter, home: Path) -> AuthStatus:
        self.homes.append(home)
        return AuthStatus(installed=True, authenticated=False, error=f"{adapter.name} says no")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "state" / "external_agent"


def home_of(storage: Path, user_id: str = "alice") -> Path:
    return get_home(plugin_storage=storage, user_id=user_id, backend="echo")


def primed(storage: Path, user_id: str = "alice") -> Path:
    home = home_of(storage, user_id)
    (home / ".echo").mkdir()
    (home / ".echo" / "login.json").write_text(LOGIN)
    return home


def test_c20_the_documented_names_take_keywords_only() -> None:
    for name, parameters in {
        "get_home": ["plugin_storage", "user_id", "backend"],
        "probe_with_home": ["adapter", "plugin_storage", "user_id", "backend"],
        "disconnect": ["plugin_storage", "user_id", "backend"],
    }.items():
        found = inspect.signature(getattr(byo_subscription, name)).parameters
        assert [n for n, p in found.items() if p.default is inspect.Parameter.empty] == parameters
        assert {p.kind for p in found.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.iscoroutinefunction(probe_with_home)


def test_c20_a_home_is_made_when_it_is_asked_for_and_is_for_nobody_else(storage: Path) -> None:
    home = home_of(storage)
    assert home == storage / "homes" / "alice" / "echo"
    for directory in (home, home.parent, home.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (home / "kept").write_text("x")
    home.chmod(0o777)
    assert home_of(storage) == home
    assert (home / "kept").exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_user_may_have_the_name_of_a_mailbox(storage: Path) -> None:
    home = get_home(plugin_storage=storage, user_id="alice.b+tag@example.org", backend="echo")
    assert home.is_dir()
    assert home.parent.name == "alice.b+tag@example.org"
    with pytest.raises(InvalidRequestError):
        get_home(plugin_storage=storage, user_id="alice", backend="echo@example.org")


@pytest.mark.parametrize("user_id", ["", ".", "..", "../bob", "a/b", "a\0b", "-a", "a" * 65, "böb", "alice\n", ".ssh"])
def test_a_user_id_that_is_no_plain_name_is_refused(storage: Path, user_id: str) -> None:
    for function in (get_home, disconnect):
        with pytest.raises(InvalidRequestError):
            function(plugin_storage=storage, user_id=user_id, backend="echo")
    with pytest.raises(InvalidRequestError):
        get_home(plugin_storage=storage, user_id="alice", backend=user_id)
    assert not storage.exists()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_symlinked_home_or_parent_is_refused(storage: Path, tmp_path: Path, depth: int) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "alice" / "echo").mkdir(parents=True)
    (elsewhere / "echo").mkdir()
    (elsewhere / "precious").write_text("kept")
    place = storage.joinpath(*("homes", "alice", "echo")[:depth])
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="symbolic link"):
        home_of(storage)
    if depth < 3:
        with pytest.raises(StorageError, match="symbolic link"):
            disconnect(plugin_storage=storage, user_id="alice", backend="echo")
    else:  # the link itself goes, what it points at stays
        disconnect(plugin_storage=storage, user_id="alice", backend="echo")
        assert not place.is_symlink()
    assert (elsewhere / "precious").exists()


def test_c20_primed_means_any_regular_file_at_any_depth(storage: Path) -> None:
    home = home_of(storage)
    assert not is_home_primed(home)
    (home / "a" / "b").mkdir(parents=True)
    assert not is_home_primed(home)
    (home / "a" / "b" / "c").touch()
    assert is_home_primed(home)
    assert not is_home_primed(home / "a" / "b" / "c")
    assert not is_home_primed(home / "none")


def test_links_sockets_and_closed_directories_do_not_prime_a_home(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "bobs").mkdir()
    (tmp_path / "bobs" / "login.json").write_text(LOGIN)
    home = home_of(storage)
    (home / "file").symlink_to(tmp_path / "bobs" / "login.json")
    (home / "directory").symlink_to(tmp_path / "bobs")
    (home / "loop").symlink_to(home)
    os.mkfifo(home / "fifo")
    assert not is_home_primed(home)
    (tmp_path / "link").symlink_to(tmp_path / "bobs")
    assert not is_home_primed(tmp_path / "link")


def test_a_home_nested_deeper_than_anything_can_be_looked_at_and_removed(storage: Path) -> None:
    home = home_of(storage)
    fd = os.open(home, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    is_home_primed(home)
    disconnect(plugin_storage=storage, user_id="alice", backend="echo")
    assert not home.exists()


def test_c20_disconnect_removes_all_and_follows_nothing(storage: Path, tmp_path: Path) -> None:
    home, other = primed(storage), primed(storage, "bob")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (home / "out").symlink_to(precious)
    (home / ".echo" / "bob").symlink_to(other)
    (home / "closed" / "inner").mkdir(parents=True)
    (home / "closed" / "inner" / "file").touch()
    (home / "closed" / "inner").chmod(0)
    (home / "closed").chmod(0)
    os.mkfifo(home / "fifo")
    for _ in range(2):
        disconnect(plugin_storage=storage, user_id="alice", backend="echo")
        assert not home.exists()
    assert (precious / "file").read_text() == "kept"
    assert (other / ".echo" / "login.json").read_text() == LOGIN
    disconnect(plugin_storage=storage, user_id="nobody", backend="echo")


async def test_c20_the_probe_says_what_is_missing_and_asks_the_cli_last(storage: Path) -> None:
    recorder, adapter = Recorder(), WithLogin()

    async def ask(probe: Recorder | None = recorder) -> AuthStatus:
        return await probe_with_home(
            adapter=adapter, plugin_storage=storage, user_id="alice", backend="echo", probe=probe
        )

    assert (await ask()).error == "no account is connected: nobody has logged in"
    assert not storage.exists()  # looking makes nothing
    home = home_of(storage)
    (home / ".echo").mkdir()
    for broken in ("", "{}", "[]", '{"tok'):
        (home / ".echo" / "login.json").write_text(broken)
        status = await ask()
        assert not status.authenticated
        assert "log in again" in (status.error or "")
    assert recorder.homes == []
    (home / ".echo" / "login.json").write_text(LOGIN)
    assert (await ask()).error == "echo says no"
    assert recorder.homes == [home]
    assert await ask(None) == AuthStatus(installed=True, authenticated=True, error=str(home))


async def test_the_probe_is_not_fooled_by_a_link_to_somebody_elses_login(storage: Path) -> None:
    other = primed(storage, "bob")
    home = home_of(storage)
    (home / "note").touch()
    (home / ".echo").symlink_to(other / ".echo")
    status = await probe_with_home(adapter=WithLogin(), plugin_storage=storage, user_id="alice", backend="echo")
    assert not status.authenticated


async def test_c19_the_link_needs_the_mode_and_a_primed_home(storage: Path) -> None:
    source = Subscription(Homes(storage))
    mode = BackendConfig(mode="byo_subscription", extra_env={"A": "1"})
    home = home_of(storage)
    assert await source.find("alice", "echo", mode) is None
    (home / "file").touch()
    assert await source.find("alice", "echo", BackendConfig(mode="byo_key")) is None
    assert await source.find("bob", "echo", mode) is None
    found = await source.find("alice", "echo", mode)
    assert found is not None
    assert (found.source, found.api_key, found.home, found.extra_env) == ("byo_subscription", None, home, {"A": "1"})
    found.extra_env["B"] = "2"
    assert mode.extra_env == {"A": "1"}
    assert not (storage / "homes" / "bob").exists()
    assert "podmentor login echo" in (source.hint("echo") or "")
    assert Subscription(Homes(storage), has_login=lambda backend: backend != "echo").hint("echo") is None
