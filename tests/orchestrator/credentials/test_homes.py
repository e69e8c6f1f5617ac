"""Leases of HOMEs, logins that survive their runs, and removal."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.contract.accounts import HomeKey
from orchestrator.credentials.homes import Homes
from orchestrator.errors import AuthRequiredError, ConflictError, InvalidRequestError

KEY = HomeKey("alice", "echo")
FILES = (".echo/login.json", ".echo/more/second.json")
GOOD = '{"token": "made-up"}'


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "external_agent"


@pytest.fixture
async def home(storage: Path) -> Path:
    home = await Homes(storage).allocate(KEY)
    (home / ".echo").mkdir()
    (home / FILES[0]).write_text(GOOD)
    return home


async def test_a_lease_outlives_the_service_and_ends_with_its_run(storage: Path, home: Path) -> None:
    assert await Homes(storage).enter("r1", KEY, FILES) == home
    later = Homes(storage)
    assert await later.leases() == {"r1": KEY}
    assert await later.leave("r1") == []
    assert await later.leave("r1") == []
    assert await later.leave("unknown") == []
    assert await later.leases() == await Homes(storage).leases() == {}


async def test_nothing_to_use_is_auth_required(storage: Path) -> None:
    homes = Homes(storage)
    with pytest.raises(AuthRequiredError):
        await homes.enter("r1", KEY, FILES)
    await homes.allocate(KEY)
    assert await homes.usable(KEY) is None
    with pytest.raises(AuthRequiredError):
        await homes.enter("r1", KEY, FILES)
    assert await homes.leases() == {}


@pytest.mark.parametrize("broken", [None, "", "{}", "null", '{"token": "ma'])
async def test_a_login_that_a_killed_cli_left_broken_is_put_back(storage: Path, home: Path, broken: str | None) -> None:
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    if broken is None:
        (home / FILES[0]).unlink()
    else:
        (home / FILES[0]).write_text(broken)
    (home / "other").write_text("not a login")
    assert await homes.leave("r1") == [FILES[0]]
    assert (home / FILES[0]).read_text() == GOOD
    assert stat.S_IMODE((home / FILES[0]).stat().st_mode) == 0o600


async def test_a_rotated_token_is_kept(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    for number in (1, 2):
        rotated = f'{{"token": "rotated {number}"}}'
        await homes.enter("r", KEY, FILES)
        (home / FILES[0]).write_text(rotated)
        assert await homes.leave("r") == []
        assert (home / FILES[0]).read_text() == rotated
    await homes.enter("r", KEY, FILES)
    (home / FILES[0]).write_text("")
    await homes.leave("r")
    assert (home / FILES[0]).read_text() == '{"token": "rotated 2"}'  # the copy is of the last run's beginning


async def test_a_login_broken_while_no_service_lived_is_put_back_when_the_next_run_begins(
    storage: Path, home: Path
) -> None:
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    await homes.leave("r1")
    (home / FILES[0]).write_text("")
    await Homes(storage).enter("r2", KEY, FILES)
    assert (home / FILES[0]).read_text() == GOOD


async def test_nothing_is_put_back_while_another_run_may_be_writing(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    await homes.enter("r2", KEY, FILES)
    (home / FILES[0]).write_text('{"tok')
    await homes.enter("r3", KEY, FILES)
    assert await homes.leave("r1") == await homes.leave("r3") == []
    assert (home / FILES[0]).read_text() == '{"tok'
    assert await homes.leave("r2") == [FILES[0]]


async def test_a_login_is_neither_read_nor_written_through_a_link(storage: Path, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"token": "of somebody else"}')
    outside = tmp_path / "outside"
    outside.mkdir()
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    (home / FILES[0]).unlink()
    (home / FILES[0]).symlink_to(secret)
    assert await homes.leave("r1") == [FILES[0]]
    assert (home / FILES[0]).read_text() == GOOD
    assert not (home / FILES[0]).is_symlink()
    assert "somebody else" in secret.read_text()

    await homes.enter("r2", KEY, FILES)
    (home / FILES[0]).unlink()
    (home / ".echo").rmdir()
    (home / ".echo").symlink_to(outside)
    (outside / "login.json").write_text('{"token": "planted"}')
    assert await homes.leave("r2") == [FILES[0]]
    assert (home / FILES[0]).read_text() == GOOD
    assert (outside / "login.json").read_text() == '{"token": "planted"}'

    (home / FILES[0]).unlink()
    (home / FILES[0]).symlink_to(secret)
    (home / "settings").touch()
    await homes.enter("r3", KEY, FILES)
    kept = [path.read_text() for path in storage.rglob("file-*")]
    assert kept == [GOOD]


@pytest.mark.parametrize("kind", ["directory", "fifo", "huge", "parent is a file"])
async def test_whatever_is_in_the_logins_place_it_is_put_back(storage: Path, home: Path, kind: str) -> None:
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    (home / FILES[0]).unlink()
    match kind:
        case "directory":
            (home / FILES[0] / "full").mkdir(parents=True)
        case "fifo":
            os.mkfifo(home / FILES[0])
        case "huge":
            with (home / FILES[0]).open("wb") as file:
                file.truncate(1 << 40)
        case _:
            (home / ".echo").rmdir()
            (home / ".echo").write_text("in the way")
    assert await homes.leave("r1") == [FILES[0]]
    assert (home / FILES[0]).read_text() == GOOD


async def test_copies_lie_outside_the_home_and_for_nobody_else(storage: Path, home: Path) -> None:
    await Homes(storage).enter("r1", KEY, FILES)
    notes = storage / "accounts" / "alice" / "echo"
    assert not notes.is_relative_to(home)
    for path in (notes, *notes.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_asking_for_removal_ends_the_use_and_is_remembered(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    await homes.enter("r1", KEY, FILES)
    await homes.ask_removal(KEY)
    assert await homes.usable(KEY) is None
    with pytest.raises(AuthRequiredError):
        await homes.enter("r2", KEY, FILES)
    with pytest.raises(ConflictError, match="disconnected"):
        await homes.allocate(KEY)
    with pytest.raises(ConflictError, match="using"):
        await homes.remove(KEY)
    later = Homes(storage)
    assert await later.asked_removals() == [KEY]
    (home / FILES[0]).unlink()
    assert await later.leave("r1") == []  # nothing comes back that is about to go
    await later.remove(KEY)
    await later.remove(KEY)
    assert await later.asked_removals() == []
    assert not home.exists()
    assert not [path for path in storage.rglob("*") if path.is_file()]
    assert await later.allocate(KEY) == home


@pytest.mark.parametrize("unless_used", [False, True])
async def test_a_run_that_begins_while_removal_is_asked_for_has_its_lease_first(
    storage: Path, home: Path, monkeypatch: pytest.MonkeyPatch, unless_used: bool
) -> None:
    """Else whoever asks would not find it among the runs to end."""
    homes, real = Homes(storage), Homes._keep
    begun, go_on, asked = threading.Event(), threading.Event(), asyncio.Event()

    class Watched(asyncio.Lock):
        async def acquire(self) -> Literal[True]:
            if begun.is_set():
                asked.set()
            return await super().acquire()

    def keep(self: Homes, *args: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        real(self, *args)

    monkeypatch.setattr(homes, "_one", Watched())
    monkeypatch.setattr(Homes, "_keep", keep)
    entering = asyncio.create_task(homes.enter("r1", KEY, FILES))
    assert await asyncio.to_thread(begun.wait, 20)
    asking = asyncio.create_task(homes.ask_removal(KEY, unless_used=unless_used))
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    early = asking.done()
    go_on.set()
    await entering
    assert not early
    if unless_used:
        with pytest.raises(ConflictError, match="using"):
            await asking
    else:
        await asking
    assert await homes.leases() == {"r1": KEY}
    assert await homes.asked_removals() == ([] if unless_used else [KEY])


async def test_nobody_logs_in_while_a_run_uses_the_home_and_no_run_begins_during_a_login(
    storage: Path, home: Path
) -> None:
    homes = Homes(storage)
    with homes.logging_in(KEY) as found:
        assert found == home
        with pytest.raises(ConflictError, match="logging in"):
            await Homes(storage).enter("r1", KEY, FILES)
        with pytest.raises(ConflictError, match="already"), Homes(storage).logging_in(KEY):
            raise AssertionError
        with pytest.raises(ConflictError):
            await homes.remove(KEY)
    await homes.enter("r1", KEY, FILES)
    with pytest.raises(ConflictError, match="run r1"), homes.logging_in(KEY):
        raise AssertionError
    await homes.leave("r1")
    with homes.logging_in(KEY):
        assert await homes.usable(KEY) == home


async def test_nobody_logs_in_while_a_broken_login_is_put_back(
    storage: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes, real = Homes(storage), Homes._put_back

    def put_back(self: Homes, key: HomeKey, at: Path) -> list[str]:
        with pytest.raises(ConflictError, match="run r1"), Homes(storage).logging_in(key):
            raise AssertionError
        return real(self, key, at)

    await homes.enter("r1", KEY, FILES)
    (home / FILES[0]).write_text("")
    monkeypatch.setattr(Homes, "_put_back", put_back)
    assert await homes.leave("r1") == [FILES[0]]
    with homes.logging_in(KEY):
        pass


async def test_a_login_that_begins_at_the_end_of_a_removal_has_a_home(
    storage: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes, real = Homes(storage), Homes._locked

    def locked(self: Homes, key: HomeKey, taken: str) -> AbstractContextManager[None]:
        monkeypatch.undo()
        Homes(storage)._remove(key)
        return real(self, key, taken)

    monkeypatch.setattr(Homes, "_locked", locked)
    with homes.logging_in(KEY) as found:
        assert found == home
        assert found.is_dir()


async def test_users_and_names_are_kept_apart(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    other = HomeKey("bob", "echo")
    (await homes.allocate(other) / "file").touch()
    await homes.enter("r1", KEY, FILES)
    await homes.enter("r2", other, FILES)
    await homes.leave("r2")
    await homes.remove(other)
    assert await homes.leases() == {"r1": KEY}
    assert (home / FILES[0]).exists()
    for bad in (HomeKey("../alice", "echo"), HomeKey("alice", "..")):
        for call in (homes.allocate, homes.usable, homes.ask_removal, homes.remove):
            with pytest.raises(InvalidRequestError):
                await call(bad)


async def test_runs_that_begin_and_end_at_once_do_not_hinder_each_other(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    names = [f"r{number}" for number in range(12)]
    await asyncio.gather(*(homes.enter(name, KEY, FILES) for name in names))
    assert await Homes(storage).leases() == dict.fromkeys(names, KEY)
    await asyncio.gather(*(homes.leave(name) for name in names))
    assert await Homes(storage).leases() == {}


async def test_a_run_that_is_cancelled_while_it_begins_leaves_no_lease(storage: Path, home: Path) -> None:
    homes = Homes(storage)
    for step in range(6):
        task = asyncio.ensure_future(homes.enter("r1", KEY, FILES))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await homes.leave("r1")
        assert await homes.leases() == await Homes(storage).leases() == {}
