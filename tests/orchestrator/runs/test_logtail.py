"""Following a growing file."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from asyncinotify import Inotify

from orchestrator.runs import logtail
from orchestrator.runs.logtail import CHUNK, LogWatcher


async def test_bytes_come_as_they_are_written_and_end_with_finish(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before ")
    async with LogWatcher() as watcher:
        tail = watcher.tail(path)
        chunks = tail.chunks()
        assert await anext(chunks) == b"before "
        pending = asyncio.ensure_future(anext(chunks))
        with path.open("ab") as log:
            log.write(b"later")
        assert await asyncio.wait_for(pending, 10) == b"later"
        with path.open("ab") as log:
            log.write(b"last")
        tail.finish()
        assert b"".join([chunk async for chunk in chunks]) == b"last"
        watcher.release(tail)


async def test_a_large_file_comes_in_chunks_from_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = bytes(range(256)) * (CHUNK // 64)
    path.write_bytes(data)
    async with LogWatcher() as watcher:
        tail = watcher.tail(path, offset=1000)
        tail.finish()
        chunks = [chunk async for chunk in tail.chunks()]
    assert b"".join(chunks) == data[1000:]
    assert max(map(len, chunks)) <= CHUNK


async def test_two_readers_of_two_files_do_not_wake_one_another_wrongly(tmp_path: Path) -> None:
    async with LogWatcher() as watcher:
        tails = []
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(b"")
            tails.append(watcher.tail(tmp_path / name))
        reads = [asyncio.ensure_future(anext(tail.chunks())) for tail in tails]
        (tmp_path / "b").write_bytes(b"B")
        assert await asyncio.wait_for(reads[1], 10) == b"B"
        assert not reads[0].done()
        (tmp_path / "a").write_bytes(b"A")
        assert await asyncio.wait_for(reads[0], 10) == b"A"


async def test_a_deleted_file_can_be_released(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    async with LogWatcher() as watcher:
        tail = watcher.tail(path)
        path.unlink()
        watcher.release(tail)
        watcher.release(tail)


@pytest.mark.parametrize("lacking", ["instances", "watches"])
async def test_a_log_is_followed_without_a_watch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent may have taken all that there are."""

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE if lacking == "instances" else errno.ENOSPC, "none left")

    if lacking == "instances":
        monkeypatch.setattr(logtail, "Inotify", none_left)
    else:
        monkeypatch.setattr(Inotify, "add_watch", none_left)
    monkeypatch.setattr(logtail, "POLL_SECONDS", 0.01)
    path = tmp_path / "log"
    path.write_bytes(b"")
    async with LogWatcher() as watcher:
        tail = watcher.tail(path)
        chunks = tail.chunks()
        pending = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        path.write_bytes(b"later")
        assert await asyncio.wait_for(pending, 10) == b"later"
        tail.finish()
        assert [chunk async for chunk in chunks] == []
        watcher.release(tail)
    assert "polled" in caplog.text
