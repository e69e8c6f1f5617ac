"""The disk meter: when it walks and what it counts; and the disk limit of runs over fakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.runs.limits import disk_limit
from orchestrator.runs.limits.disk_meter import ROUTINE_SECONDS, DiskMeter, DiskPlaces, Inside
from orchestrator.runs.limits.file_usage import ENTRY_BYTES
from tests.orchestrator.runs.harness import Service, World, answer, shape

KIB = 1024
NOBODY = Inside(init_pid=2**22 + 1, pids=list)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Meter(DiskMeter):
    """A meter whose file system tells what the test wants."""

    lost = 0

    def _lost(self) -> int:
        return self.lost


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_it_walks_only_when_the_file_system_has_lost_enough(home: Path, clock: Clock) -> None:
    meter = Meter(DiskPlaces((home,)), limit_bytes=1 << 30, clock=clock)
    assert meter.first() == ENTRY_BYTES
    (home / "f").write_bytes(bytes(200 * KIB))
    clock.now += 1
    meter.lost = 50 * KIB
    assert meter.tick(100 * KIB, NOBODY) is None
    assert meter.walks == 1
    meter.lost = 200 * KIB
    used = meter.tick(100 * KIB, NOBODY)
    assert used is not None
    assert used >= 200 * KIB
    assert meter.peak_bytes == used


def test_it_walks_now_and_then_since_others_may_free_what_it_fills(home: Path, clock: Clock) -> None:
    meter = Meter(DiskPlaces((home,)), limit_bytes=1 << 30, clock=clock)
    meter.first()
    (home / "f").write_bytes(bytes(200 * KIB))
    clock.now += ROUTINE_SECONDS - 1
    assert meter.tick(100 * KIB, NOBODY) is None
    clock.now += 2
    assert meter.tick(100 * KIB, NOBODY) is not None


def test_a_dear_walk_is_rare(home: Path, clock: Clock) -> None:
    """2 % of the time without a cause, 10 % with one."""

    class Slow(Meter):
        def _free_now(self) -> dict[int, tuple[int, int]]:
            clock.now += 3
            return super()._free_now()

    meter = Slow(DiskPlaces((home,)), limit_bytes=1 << 30, clock=clock)
    meter.first()
    meter.lost = 1 << 30
    clock.now += 29
    assert meter.tick(KIB, NOBODY) is None
    clock.now += 2
    assert meter.tick(KIB, NOBODY) is not None
    meter.lost = 0
    clock.now += 149
    assert meter.tick(1 << 30, NOBODY) is None
    clock.now += 2
    assert meter.tick(1 << 30, NOBODY) is not None


def test_a_repo_that_is_worked_on_directly_counts_for_its_growth(tmp_path: Path, home: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "large").write_bytes(bytes(500 * KIB))
    places = DiskPlaces.of(WorkspaceMount(mode="direct", source=repo), home)
    meter = DiskMeter(places, limit_bytes=1 << 30)
    assert meter.first() == ENTRY_BYTES
    (repo / "new").write_bytes(bytes(100 * KIB))
    later = DiskMeter(places, limit_bytes=1 << 30, baseline=meter.baseline)
    assert 100 * KIB <= later.first() <= 120 * KIB


def test_what_counts_in_each_mode(tmp_path: Path) -> None:
    home, source, upper = tmp_path / "home", tmp_path / "repo", tmp_path / "upper"
    overlay = WorkspaceMount(mode="overlay", source=source, upper=upper, work=tmp_path / "work")
    assert DiskPlaces.of(overlay, home).whole == (home, upper)
    assert DiskPlaces.of(WorkspaceMount(mode="readonly", source=source), home) == DiskPlaces((home,))


def test_a_deleted_file_that_is_open_counts(home: Path) -> None:
    meter = DiskMeter(DiskPlaces((home,)), limit_bytes=1 << 30)
    meter.first()
    with open(home / "f", "wb") as file:  # noqa: PTH123
        file.write(bytes(300 * KIB))
        file.flush()
        (home / "f").unlink()
        used = meter.tick(0, Inside(init_pid=os.getpid(), pids=lambda: [os.getpid()]))
        assert used is None or used >= 300 * KIB  # None: the disk has not lost anything yet
        assert meter._measure(Inside(init_pid=os.getpid(), pids=lambda: [os.getpid()])) >= 300 * KIB


def test_a_stopped_meter_tells_nothing_new(home: Path) -> None:
    meter = DiskMeter(DiskPlaces((home,)), limit_bytes=1 << 30)
    meter.first()
    for number in range(1000):
        (home / str(number)).touch()
    meter.stop()
    assert meter.first() == ENTRY_BYTES


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(disk_limit, "INTERVAL", 0.01)
    return World(tmp_path)


async def fill(service: Service, subagent_id: str, size: int) -> None:
    upper = service.world.paths.subagent_dir(subagent_id) / "upper"
    (upper / "filled").write_bytes(bytes(size))


LIMIT = LimitsRequest(disk_max_bytes=1 << 20)


async def test_an_excess_kills_at_once_and_names_limit_and_use(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LIMIT)
        container = await service.container()
        container.say(text="working")
        await service.until(run.run_id, "message_delta")
        await fill(service, run.subagent_id, 2 << 20)
        record = await service.finished(run.run_id)
        assert container.signals == ["KILL"]
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
        details = record.error["details"]
        assert (details["limit"], details["limit_bytes"]) == ("disk_max_bytes", 1 << 20)
        assert details["used_bytes"] > 2 << 20
        assert "1 MiB" in record.error["message"]
        assert record.usage["peak_disk_bytes"] == details["used_bytes"]
        assert record.enforcement["disk_max_bytes"] == "watch"
        assert shape(await service.events(run.run_id))[-1] == "error"


async def test_a_conversation_over_its_limit_is_not_started(world: World) -> None:
    async with world.service() as service:
        first = await service.submit()
        answer(await service.container())
        await service.finished(first.run_id)
        await fill(service, first.subagent_id, 2 << 20)
        record = await service.finished((await service.submit(subagent_id=first.subagent_id, limits=LIMIT)).run_id)
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
        assert "discard" in record.error["message"]
        assert record.error["details"]["limit"] == "disk_max_bytes"
        assert len(world.runtime.created) == 1


async def test_a_warning_is_given_once_also_over_a_restart(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LIMIT)
        container = await service.container()
        await fill(service, run.subagent_id, 900 * KIB)
        warning = await service.until(run.run_id, "status", phase="limit_warning")
        assert warning.source == "orchestrator"
        assert warning.data["limit"] == "disk_max_bytes"
        assert warning.data["limit_bytes"] == 1 << 20
        assert warning.data["used_bytes"] >= 900 * KIB
    async with world.service() as service:
        container.say(text="still here")
        await service.until(run.run_id, "message_delta")
        await fill(service, run.subagent_id, 2 << 20)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "disk_exceeded"
        events = await service.events(run.run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert shape(events).count("status:limit_warning") == 1


async def test_the_other_warnings(world: World) -> None:
    """Output and wall clock; the error that follows names the same limit."""
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=1000, wall_clock_seconds=2))
        container = await service.container()
        container.say(text="x" * 850)
        warning = await service.until(run.run_id, "status", phase="limit_warning")
        assert (warning.data["limit"], warning.data["limit_bytes"]) == ("output_max_bytes", 1000)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "timeout"
        assert record.error["details"]["limit_seconds"] == 2
        assert record.error["details"]["used_seconds"] >= 2
        warned = [e.data["limit"] for e in await service.events(run.run_id) if e.data.get("phase") == "limit_warning"]
        assert warned == ["output_max_bytes", "wall_clock_seconds"]


async def test_a_flood_is_stopped_by_the_size_of_the_log_and_not_all_of_it_is_journalled(world: World) -> None:
    """What is written faster than it is read would else be read to its end before the run is over."""
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=100_000))
        container = await service.container()
        container.say(text="first")
        await service.until(run.run_id, "message_delta")
        with container.spec.log_path.open("ab") as log:
            log.write(b"2026-01-01T00:00:00.000000000Z stdout F y\n" * 100_000)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "output_exceeded"
        assert record.error["details"]["used_bytes"] > 100_000
        assert container.signals == ["KILL"]


async def test_events_end_where_the_output_limit_is_passed(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=100_000))
        container = await service.container()
        with container.spec.log_path.open("ab") as log:
            log.write((b"2026-01-01T00:00:00.000000000Z stdout F " + b"y" * 999 + b"\n") * 1000)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "output_exceeded"
        events = await service.events(run.run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert 100 < len(events) < 250
        assert record.usage["output_bytes"] < 250_000
