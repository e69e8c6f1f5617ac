"""The audit log: one line per event, whoever writes and however many."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.audit import AuditLog
from orchestrator.contract.audit import ENVELOPE
from orchestrator.errors import StorageError
from tests.fakes.metrics import FakeMetrics

ROOT = Path(__file__).parents[3]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_one_line_of_json_per_event(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", now=lambda: "2030-01-01T00:00:00.000Z")
    await log.record("key.set", actor="user:alice", user_id="alice", backend="codex")
    await log.record("credential.used", user_id="a\nb\u2028c", credential_source=None)
    assert (tmp_path / "audit.log").read_text().count("\n") == 2
    assert lines(tmp_path / "audit.log") == [
        {
            "ts": "2030-01-01T00:00:00.000Z",
            "event": "key.set",
            "actor": "user:alice",
            "user_id": "alice",
            "backend": "codex",
        },
        {
            "ts": "2030-01-01T00:00:00.000Z",
            "event": "credential.used",
            "actor": "service",
            "user_id": "a\nb\u2028c",
            "credential_source": None,
        },
    ]


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await AuditLog(tmp_path / "audit.log").record("x")
    finally:
        os.umask(before)
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


async def test_a_full_file_is_moved_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1, kept=2)
    for number in range(5):
        await log.record("n", number=number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert [lines(path.with_name(name))[0]["number"] for name in ("audit.log", "audit.log.1", "audit.log.2")] == [
        4,
        3,
        2,
    ]


async def write_some(path: Path, who: int, count: int) -> None:
    log = AuditLog(path, max_bytes=2000, kept=1000)
    for number in range(count):
        await log.record("n", who=who, number=number, text="x" * 100)


async def test_processes_write_at_once_and_nothing_is_lost_or_torn(tmp_path: Path) -> None:
    writers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            str(tmp_path / "audit.log"),
            str(who),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for who in range(3)
    ]
    async with asyncio.timeout(60):
        assert [await writer.wait() for writer in writers] == [0, 0, 0]
    found = [(one["who"], one["number"]) for path in tmp_path.glob("audit.log*") for one in lines(path)]
    assert sorted(found) == [(who, number) for who in range(3) for number in range(60)]


async def test_a_line_that_a_crash_has_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"ts": "2030')
    await AuditLog(path).record("after")
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "after"


async def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot be written"):
        await AuditLog(tmp_path / "audit.log").record("x")
    assert not (tmp_path / "elsewhere").exists()


async def test_a_directory_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        await AuditLog(tmp_path / "gone" / "audit.log").record("x")


async def test_what_has_happened_already_goes_to_the_services_log_when_it_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = FakeMetrics()
    log = AuditLog(tmp_path / "audit.log", metrics=metrics)
    await log.note("run.ended", user_id="alice", outcome="completed")
    assert lines(tmp_path / "audit.log")[0]["event"] == "run.ended"
    (tmp_path / "audit.log").unlink()
    (tmp_path / "audit.log").mkdir()
    await log.note("run.ended", user_id="bob", outcome="failed")
    with pytest.raises(StorageError):
        await log.record("run.started")
    [reported] = caplog.records
    assert "cannot be written" in reported.message
    assert '"event":"run.ended","actor":"service","user_id":"bob","outcome":"failed"' in reported.message
    assert metrics.values == {"audit_lines_total": 1, "audit_failures_total": 2}


async def test_the_envelope_comes_first_in_its_order(tmp_path: Path) -> None:
    await AuditLog(tmp_path / "audit.log").record("x", host="h", backend="b", run_id="r", user_id="u", actor="a")
    assert list(lines(tmp_path / "audit.log")[0]) == ["ts", *ENVELOPE[1:], "host"]


if __name__ == "__main__":
    asyncio.run(write_some(Path(sys.argv[1]), int(sys.argv[2]), 60))
