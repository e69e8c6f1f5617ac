"""Reading the audit log: over rotated files, while they move, past lines that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.audit import AuditLog, AuditReader
from orchestrator.contract.audit import AuditFilter, Damaged
from orchestrator.errors import StorageError

ALL = AuditFilter()
PER_FILE = 300
"""Bytes: two or three lines."""


def log_in(tmp_path: Path, **options: Any) -> AuditLog:
    return AuditLog(tmp_path / "audit.log", **{"max_bytes": PER_FILE, "kept": 8, **options})


async def write(log: AuditLog, numbers: range, **facts: Any) -> None:
    for number in numbers:
        await log.record("egress.allowed", count=number, **facts)


def append(tmp_path: Path, data: bytes) -> None:
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(data)


def counts(lines: list[Mapping[str, Any] | Damaged]) -> list[Any]:
    return [line.number if isinstance(line, Damaged) else line["count"] for line in lines]


@pytest.fixture
def reader(tmp_path: Path) -> AuditReader:
    return AuditReader(tmp_path / "audit.log", kept=8)


async def test_there_is_no_log_yet(reader: AuditReader) -> None:
    assert await reader.last(ALL, 5) == []


@pytest.mark.parametrize("count", [0, 1, 3, 10, 12, 50, None])
async def test_the_last_lines_over_all_files_in_their_order(
    tmp_path: Path, reader: AuditReader, count: int | None
) -> None:
    await write(log_in(tmp_path), range(12))
    assert len(list(tmp_path.glob("audit.log*"))) > 2
    wanted = list(range(12)) if count is None else list(range(12))[12 - min(count, 12) :]
    assert counts(await reader.last(ALL, count)) == wanted


async def test_only_what_is_wanted(tmp_path: Path, reader: AuditReader) -> None:
    log = log_in(tmp_path)
    await write(log, range(2), user_id="alice", run_id="a" * 32)
    await write(log, range(2, 4), user_id="bob", run_id="b" * 32, host="a" * 32)
    await log.record("key.set", actor="service:codumentor", user_id="alice", backend="codex")
    assert len(await reader.last(AuditFilter(user="codumentor"), 9)) == 1
    assert counts(await reader.last(AuditFilter(run_id="a" * 8), None)) == [0, 1]
    assert counts(await reader.last(AuditFilter(user="bob"), 1)) == [3]
    assert counts(await reader.last(AuditFilter(event="egress.*", user="alice"), 9)) == [0, 1]
    assert [
        one["event"] for one in await reader.last(AuditFilter(event="key.*"), 9) if not isinstance(one, Damaged)
    ] == ["key.set"]


@pytest.mark.parametrize("bad", [b'{"ts": "20', b"\xff\xfe\x00", b"[1]", b'{"event": 5, "ts": ""}', b"[" * 100_000])
async def test_a_line_that_cannot_be_read_is_told_and_passed(tmp_path: Path, reader: AuditReader, bad: bytes) -> None:
    log = log_in(tmp_path, max_bytes=10**6)
    await write(log, range(1))
    append(tmp_path, bad)
    await write(log, range(1, 2))
    first, broken, last = await reader.last(ALL, None)
    assert broken == Damaged("audit.log", 2, len(bad))
    assert counts([first, last]) == [0, 1]


async def test_damage_does_not_take_the_place_of_a_line(tmp_path: Path, reader: AuditReader) -> None:
    log = log_in(tmp_path, max_bytes=10**6)
    await write(log, range(2))
    append(tmp_path, b"cut")
    assert counts(await reader.last(ALL, 2)) == [0, 1, 3]


async def collected(lines: AsyncIterator[Any], number: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(20):
        async for line in lines:
            found.append(line)
            if len(found) == number:
                break
    return found


async def test_what_is_written_while_it_is_followed_over_many_rotations(tmp_path: Path, reader: AuditReader) -> None:
    log = log_in(tmp_path, kept=50)
    reader = AuditReader(tmp_path / "audit.log", kept=50)
    await write(log, range(5))
    assert counts(await reader.last(ALL, 2)) == [3, 4]
    async with aclosing(reader.follow(ALL)) as lines:  # type: ignore[type-var]
        for begin in range(5, 65, 20):
            await write(log, range(begin, begin + 20))  # several rotations between two looks
            assert counts(await collected(lines, 20)) == list(range(begin, begin + 20))


async def test_a_follower_that_waits_is_woken(
    tmp_path: Path, reader: AuditReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.audit.reader.LOOK_SECONDS", 1000)
    log = log_in(tmp_path)
    async with aclosing(reader.follow(ALL)) as lines:  # type: ignore[type-var]
        first = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)  # it begins before anything is there
        await write(log, range(1))
        assert counts([await asyncio.wait_for(first, 20)]) == [0]


async def test_a_cut_line_is_told_once_when_it_is_followed(tmp_path: Path, reader: AuditReader) -> None:
    log = log_in(tmp_path, max_bytes=10**6)
    await write(log, range(1))
    append(tmp_path, b'{"ts":')
    assert counts(await reader.last(ALL, 5)) == [0, 2]
    async with aclosing(reader.follow(ALL)) as lines:  # type: ignore[type-var]
        await write(log, range(1, 2))
        assert counts(await collected(lines, 1)) == [1]


async def test_a_file_that_went_while_nobody_looked(tmp_path: Path) -> None:
    """More was written than is kept: what is still there comes."""
    log, reader = log_in(tmp_path, kept=1), AuditReader(tmp_path / "audit.log", kept=1)
    await write(log, range(1))
    await reader.last(ALL, 1)
    await write(log, range(1, 20))
    async with aclosing(reader.follow(ALL)) as lines:  # type: ignore[type-var]
        found = counts(await collected(lines, 2))
    assert found[0] > 10
    assert found == sorted(found)


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path, reader: AuditReader) -> None:
    (tmp_path / "audit.log").symlink_to("/etc/passwd")
    with pytest.raises(StorageError, match="cannot be read"):
        await reader.last(ALL, 1)
