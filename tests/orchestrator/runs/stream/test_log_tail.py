"""Following a growing file."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from orchestrator.runs.stream.log_tail import CHUNK, LogWatcher


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


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        ("asyncinotify.Inotify.add_watch", OSError(errno.ENOSPC, "the limit on inotify watches was reached")),
        ("orchestrator.runs.stream.log_tail.Inotify", OSError(errno.EMFILE, "Too many open files")),
    ],
    ids=["watches", "descriptors"],
)
async def test_a_kernel_without_inotify_left_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, why: OSError
) -> None:
    """Agents in containers use up the same allowance as the service does."""

    def refuse(*_: object) -> None:
        raise why

    path = tmp_path / "log"
    path.write_bytes(b"")
    monkeypatch.setattr("orchestrator.runs.stream.log_tail.LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lacking, refuse)
    async with LogWatcher() as watcher:
        tail = watcher.tail(path)
        pending = asyncio.ensure_future(anext(tail.chunks()))
        await asyncio.sleep(0)
        path.write_bytes(b"seen all the same")
        assert await asyncio.wait_for(pending, 10) == b"seen all the same"
        watcher.release(tail)
