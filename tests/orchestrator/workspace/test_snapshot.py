"""What each run changed, and the way back to the end of an earlier one."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConflictError, NotFoundError, StorageError
from orchestrator.workspace import content_store, snapshot
from orchestrator.workspace.overlay.diff import is_whiteout
from tests.orchestrator.workspace.overlay import Overlay
from tests.orchestrator.workspace.test_apply_property import SLOW
from tests.orchestrator.workspace.test_changes_property import by_path, edited, edits, expected
from tests.orchestrator.workspace.trees import File, Tree, make_upper, opaque, read, whiteout, without_empty

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
OLD: Tree = {b"a": File(b"a\n"), b"b": File(b"b\n"), b"d": {b"x": File(b"x\n")}}


async def two_runs(tmp_path: Path) -> Overlay:
    overlay = Overlay.of(tmp_path, OLD, OLD | {b"a": File(b"A\n"), b"new": File(b"1\n", executable=True)})
    (overlay.upper / ".git").mkdir(exist_ok=True)
    (overlay.upper / ".git" / "HEAD").write_text("one")
    await overlay.ended(ONE)
    (overlay.upper / "a").unlink()
    whiteout(overlay.upper / "b")
    (overlay.upper / "new").write_bytes(b"2\n")
    (overlay.upper / ".git" / "HEAD").write_text("two")
    await overlay.ended(TWO)
    return overlay


async def test_each_run_has_its_own_changes(tmp_path: Path) -> None:
    overlay = await two_runs(tmp_path)
    assert await overlay.of_run(ONE) == {"a": "changed", "new": "changed"}
    assert await overlay.of_run(TWO) == {"a": "restored", "b": "deleted", "new": "changed"}
    await overlay.ended(THREE)
    assert await overlay.of_run(THREE) == {}
    with pytest.raises(NotFoundError, match="no snapshot"):
        await overlay.of_run("4" * 32)


async def test_what_was_applied_or_dropped_belongs_to_no_run(tmp_path: Path) -> None:
    overlay = await two_runs(tmp_path)
    await overlay.apply("b")
    await overlay.discard("new")
    await overlay.ended(THREE)
    assert await overlay.of_run(THREE) == {}


async def test_the_way_back_and_forth(tmp_path: Path) -> None:
    overlay = await two_runs(tmp_path)
    assert await overlay.rollback(ONE) == ["a", "b", "new"]
    assert by_path(await overlay.changes()) == {b"a": "modified", b"new": "added"}
    assert (overlay.upper / "new").read_bytes() == b"1\n"
    assert os.access(overlay.upper / "new", os.X_OK)
    assert (overlay.upper / ".git" / "HEAD").read_text() == "one"
    await overlay.rollback(TWO)
    assert by_path(await overlay.changes()) == {b"b": "deleted", b"new": "added"}
    assert is_whiteout((overlay.upper / "b").lstat())
    await overlay.ended(THREE)
    assert await overlay.of_run(THREE) == {}
    assert sorted(p.name for p in overlay.base.iterdir()) == ["record", "snapshots", "upper", "work"]


async def test_going_back_does_not_forget_what_the_agent_began_with(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, OLD | {b"a": File(b"A\n")})
    await overlay.ended(ONE)
    await overlay.apply()
    (overlay.repo / "a").write_text("host\n")
    (overlay.upper / "a").write_text("from the host's\n")
    await overlay.ended(TWO)
    await overlay.rollback(ONE)
    with pytest.raises(ConflictError, match="changed since"):
        await overlay.apply()
    with pytest.raises(ConflictError, match="not kept any more"):
        await overlay.apply(on_conflict="merge")


async def test_dropped_changes_can_be_had_back(tmp_path: Path) -> None:
    overlay = await two_runs(tmp_path)
    await overlay.discard()
    await overlay.rollback(TWO)
    assert by_path(await overlay.changes()) == {b"b": "deleted", b"new": "added"}


async def test_all_sorts_of_entries_come_back(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "d").mkdir()
    (overlay.repo / "d" / "x").write_text("x")
    (overlay.upper / "d").mkdir(mode=0o750)
    opaque(overlay.upper / "d")
    name = os.fsdecode(b"odd \xff\n")
    (overlay.upper / "d" / name).write_bytes(b"\0" * 100_000)
    (overlay.upper / "link").symlink_to("/nowhere")
    (overlay.upper / "empty").mkdir()
    os.utime(overlay.upper / "d" / name, ns=(5, 5))
    os.mkfifo(overlay.upper / "pipe", 0o600)
    await overlay.ended(ONE)
    await overlay.discard()
    await overlay.rollback(ONE)
    assert {(c.path, c.change) for c in await overlay.changes()} == {
        (f"d/{name}", "added"),
        ("d/x", "deleted"),
        ("link", "added"),
    }
    assert (overlay.upper / "d" / name).stat().st_mtime_ns == 5
    assert (overlay.upper / "d").stat().st_mode & 0o777 == 0o750
    assert (overlay.upper / "empty").is_dir()


async def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = await two_runs(tmp_path)
    monkeypatch.setattr(snapshot, "MAX_BYTES", 5)
    (overlay.upper / "more").write_text("four")
    await overlay.ended(THREE)
    assert await overlay.of_run(THREE) == {"more": "changed"}
    (overlay.upper / "more").write_text("too much")
    with pytest.raises(Exception, match="no snapshot"):
        await overlay.ended("4" * 32)


async def test_files_without_number_do_not_keep_a_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = await two_runs(tmp_path)
    monkeypatch.setattr(snapshot, "MAX_SECONDS", -1.0)
    await overlay.ended(THREE)  # nothing new is to be copied
    (overlay.upper / "more").write_text("new")
    with pytest.raises(Exception, match="no snapshot"):
        await overlay.ended("4" * 32)


async def test_many_new_files_are_flushed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = await two_runs(tmp_path)
    for number in range(300):
        (overlay.upper / f"file{number}").write_text(str(number))
    flushed: list[int] = []
    at_once: list[int] = []
    monkeypatch.setattr("os.fsync", flushed.append)
    monkeypatch.setattr(content_store, "sync_file_system", at_once.append)
    await overlay.ended(THREE)
    assert len(at_once) == 1
    assert len(flushed) < 30
    await overlay.ended("4" * 32)
    assert len(at_once) == 1  # nothing new


async def test_a_damaged_content_is_told_and_nothing_is_exchanged(tmp_path: Path) -> None:
    overlay = await two_runs(tmp_path)
    for blob in (overlay.base / "snapshots" / "blobs").iterdir():
        blob.write_bytes(b"")
    with pytest.raises(StorageError, match="damaged"):
        await overlay.rollback(ONE)
    assert (overlay.upper / "new").read_bytes() == b"2\n"


async def test_old_snapshots_go_with_their_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEPT", 1)
    overlay = await two_runs(tmp_path)
    with pytest.raises(NotFoundError):
        await overlay.rollback(ONE)
    assert len(list((overlay.base / "snapshots" / "blobs").iterdir())) == 2  # new, .git/HEAD


@pytest.mark.parametrize("moved", [False, True])
async def test_a_crash_in_the_middle_of_the_exchange_is_finished(tmp_path: Path, moved: bool) -> None:
    overlay = await two_runs(tmp_path)
    (overlay.base / snapshot.NEXT).mkdir()
    (overlay.base / snapshot.NEXT / "back").write_text("x")
    if moved:
        overlay.upper.rename(overlay.base / "scratch-1-old")
    await overlay.workspaces.recover()
    assert [p.name for p in overlay.upper.iterdir()] == ["back"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    old, first = draw(edits())
    return old, first, draw(edited(first))


@settings(database=None, max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(histories(), st.integers(0, 2**32))
def test_any_history_can_be_walked_back(trees: tuple[Tree, Tree, Tree], seed: int) -> None:
    old, first, second = trees
    with tempfile.TemporaryDirectory() as top:
        overlay = Overlay.of(Path(top), old, first, seed)
        asyncio.run(overlay.ended(ONE))
        asyncio.run(overlay.discard())
        make_upper(overlay.upper, old, second, random.Random(seed))
        asyncio.run(overlay.ended(TWO))
        asyncio.run(overlay.rollback(ONE))
        assert by_path(asyncio.run(overlay.changes())) == expected(old, first)
        asyncio.run(overlay.rollback(TWO))
        assert by_path(asyncio.run(overlay.changes())) == expected(old, second)
        asyncio.run(overlay.apply())
        assert without_empty(second) == read(overlay.repo)
