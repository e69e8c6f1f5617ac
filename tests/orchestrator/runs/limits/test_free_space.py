"""The disk that holds the state: runs end before it is full, and a full one is said to be full."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.runs.limits import free_space
from orchestrator.runs.limits.free_space import Space, refuse_full
from orchestrator.runs.teardown.outcome import failure
from tests.orchestrator.runs.harness import World, answer, shape
from tests.orchestrator.runs.test_supervisor import assert_nothing_left

MIB = 1024**2


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, storage={"keep_free_bytes": 100 * MIB})


def leave(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(free_space, "free_bytes", lambda _: free)
    monkeypatch.setattr(free_space, "LOOK_SECONDS", 0.01)


async def test_no_run_is_taken_when_the_disk_is_almost_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.service() as service:
        leave(monkeypatch, 99 * MIB)
        with pytest.raises(StorageError, match=r"almost full.*keep_free_bytes.*make room") as refused:
            await service.submit()
        assert refused.value.details == {"free_bytes": 99 * MIB, "keep_free_bytes": 100 * MIB}
        leave(monkeypatch, 100 * MIB)
        await service.submit()
        answer(await service.container())


async def test_runs_are_ended_before_their_output_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.service() as service:
        leave(monkeypatch, 200 * MIB)
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        await service.until(run.run_id, "session_started")
        leave(monkeypatch, 25 * MIB)  # a quarter: not yet
        await asyncio.sleep(0.05)
        assert container.state == "running"
        leave(monkeypatch, 25 * MIB - 1)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
        assert record.error["details"]["free_bytes"] == 25 * MIB - 1
        assert "may be missing" not in record.error["message"]
        assert shape(await service.events(run.run_id))[-1] == "error"
    assert_nothing_left(world)


async def test_a_run_that_is_taken_over_is_ended_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 200 * MIB)
    async with world.service() as service:
        run = await service.submit()
        (await service.container()).say(session="s")
        await service.until(run.run_id, "session_started")
    leave(monkeypatch, 0)
    async with world.service() as service:
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
        assert "may be missing" in record.error["message"]


async def test_one_look_serves_all_runs_and_there_is_none_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, storage={"keep_free_bytes": 100 * MIB}, runs={"max_concurrent": 2})
    free, looks = 200 * MIB, 0

    def look(_: Path) -> int:
        nonlocal looks
        looks += 1
        return free

    monkeypatch.setattr(free_space, "free_bytes", look)
    async with world.service() as service:
        runs = [await service.submit() for _ in range(3)]
        await service.container()
        await service.container()
        assert looks == 3 + 1, "one for each request, and one for both that run"
        monkeypatch.setattr(free_space, "LOOK_SECONDS", 0.01)
        free = 0
        for run in runs:  # the third begins when it is full already
            record = await service.finished(run.run_id)
            assert record.error is not None
            assert record.error["reason"] == "disk_exceeded"
        async with asyncio.timeout(10):
            while service.supervisor.counts()["running"]:  # noqa: ASYNC110 -- the driver gives no signal
                await asyncio.sleep(0.01)
        before = looks
        await asyncio.sleep(0.1)
        assert looks == before
    assert_nothing_left(world)


async def test_nothing_is_looked_at_when_nothing_is_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 0)
    disk = Space(Path("/"), 0)
    await disk.check()
    await asyncio.wait_for(disk.watch(lambda *_, **__: pytest.fail("decided")), 5)


def test_a_service_does_not_begin_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuse_full(tmp_path)
    leave(monkeypatch, 1000)
    with pytest.raises(StorageError, match="is full"):
        refuse_full(tmp_path)


def test_what_a_run_ends_with() -> None:
    full = failure(OSError(errno.ENOSPC, "No space left on device", "/state/x"))
    assert (full.reason, full.details) == ("disk_exceeded", {"code": "storage_failed"})
    assert "/state/x" in full.message
    other = failure(PermissionError(errno.EACCES, "Permission denied", "/state/x"))
    assert (other.reason, other.message) == ("sandbox_failed", "Permission denied (/state/x)")


async def test_a_log_that_cannot_be_made_is_no_bug(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("orchestrator.runs.launch.launch.make_log", full)
    async with world.service() as service:
        run = await service.submit()
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
    assert_nothing_left(world)


IN_A_SMALL_PLACE = """
import asyncio, json, os, sys
from pathlib import Path
from orchestrator.errors import StorageError
from orchestrator.runs.stream import journal
from tests.orchestrator.runs.harness import World, shape

ROOT = Path(sys.argv[1])

def fill():
    with (ROOT / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue

async def main():
    journal.FIRST_PAUSE = journal.LONGEST_PAUSE = 0.05
    world = World(ROOT, storage={"keep_free_bytes": 0})
    async with world.service() as service:
        waiting = await service.submit("waits")
        container = await service.container()
        second = await service.submit("is cancelled meanwhile")
        other = await service.container()
        container.say(session="s")
        await service.until(waiting.run_id, "session_started")
        text = "t" * 60_000
        for number in range(10):  # on the log's disk there is room: it is another one here, as far as this test goes
            container.say(text=f"{number} {text}")
        fill()
        refused = ""
        try:
            for number in range(200):
                await service.submit("q" * 20_000)
        except StorageError as error:
            refused = error.message
        while not service.journal.stalled:
            await asyncio.sleep(0.01)
        other.ignores_int = False
        cancelled = (await service.runs.cancel(second.run_id, user_id="alice")).state
        await asyncio.wait_for(other.ended.wait(), 20)
        (ROOT / "filler").unlink()
        container.say(done="end")
        container.exit(0)
        first = await service.finished(waiting.run_id)
        ended = await service.finished(second.run_id)
        events = await service.events(waiting.run_id)
        print(json.dumps({
            "refused": refused, "outcome": first.outcome, "second": ended.outcome,
            "texts": [e.data["text"].split()[0] for e in events if e.kind == "message_delta"],
            "seqs": [e.seq for e in events] == list(range(1, len(events) + 1)), "last": events[-1].kind,
        }))
        for record in await service.store.unfinished():
            await service.runs.cancel(record.record.run_id, user_id="alice")

asyncio.run(main())
"""
"""The log lies on the same small disk, so it is written before that is full."""


def test_a_really_full_disk(tmp_path: Path) -> None:
    """A file system of 6 MiB of its own, in namespaces of its own: needs no rights, and is gone with the process."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    probe = subprocess.run([unshare, "-Urm", "mount", "-t", "tmpfs", "none", str(tmp_path)], check=False)
    if probe.returncode != 0:
        pytest.skip("this machine does not let unprivileged users make namespaces")
    mounted = 'mount -t tmpfs -o size=6m none "$1" && exec "$0" -c "$2" "$1"'
    project = Path(__file__).parents[4]
    ran = subprocess.run(
        [unshare, "-Urm", "sh", "-c", mounted, sys.executable, str(tmp_path), IN_A_SMALL_PLACE],
        cwd=project,
        env={"PYTHONPATH": str(project)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    seen = json.loads(ran.stdout.decode().splitlines()[-1])
    assert "the disk is full" in seen["refused"]
    assert seen["texts"] == [str(number) for number in range(10)]
    assert (seen["outcome"], seen["second"], seen["seqs"], seen["last"]) == (
        "completed",
        "cancelled",
        True,
        "completed",
    )
