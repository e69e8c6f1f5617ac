"""The memory watchdog, on real processes and on a made-up /proc."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.runs.limits.memory_watchdog import MemoryMeter, ProcessTable, namespace_of, watch_memory
from tests.fakes import allocator

MIB = 1024 * 1024
NAMESPACES = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL"]
HUGE = 1 << 40
SLACK = 10 * MIB
"""Pages shared with other processes of the machine count for less as more of them share."""


class Allocator:
    """The process of tests/fakes/allocator.py."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n".encode())
        answer = await asyncio.wait_for(self.process.stdout.readline(), 60)
        assert answer, "the process has ended"
        return answer.decode().strip()


@asynccontextmanager
async def allocating(*before: str) -> AsyncIterator[Allocator]:
    process = await asyncio.create_subprocess_exec(
        *before,
        sys.executable,
        allocator.__file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        it = Allocator(process)
        assert process.stdout is not None
        if await asyncio.wait_for(process.stdout.readline(), 60) != b"ready\n":
            pytest.fail("namespaces cannot be made here")
        it.pid = int(await it.tell("pid"))
        yield it
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.fixture
async def table() -> AsyncIterator[ProcessTable]:
    table = ProcessTable(max_age=0)
    yield table
    await table.aclose()


async def namespace(pid: int) -> int | None:
    return await asyncio.to_thread(namespace_of, Path("/proc"), pid)


async def exact(meter: MemoryMeter) -> int:
    used = await meter.measure(0)
    assert used is not None
    return used


async def test_everything_in_the_namespace_is_counted(table: ProcessTable) -> None:
    async with allocating(*NAMESPACES) as it:
        with await MemoryMeter.of(it.pid, table) as meter:
            start = await exact(meter)
            assert 0 < start < 40 * MIB
            await it.tell("grow 50")
            one = await exact(meter)
            assert one >= start + 50 * MIB - SLACK
            await it.tell("orphan 60")
            two = await exact(meter)
            assert two >= one + 60 * MIB - SLACK
            await it.tell("nested 70")
            three = await exact(meter)
            assert three >= two + 70 * MIB - SLACK
            assert three < start * 4 + 200 * MIB
            assert meter.peak_bytes == three


async def test_memory_that_is_shared_is_counted_once(table: ProcessTable) -> None:
    async with allocating(*NAMESPACES) as it:
        await it.tell("share 80 3")
        with await MemoryMeter.of(it.pid, table) as meter:
            used = await exact(meter)
            assert 80 * MIB <= used < 160 * MIB
            # The bound alone (four times 80 MiB) is above this limit, the exact measure is not.
            assert (await meter.measure(160 * MIB) or 0) < 160 * MIB


async def test_two_containers_are_told_apart(table: ProcessTable) -> None:
    async with allocating(*NAMESPACES) as one, allocating(*NAMESPACES) as other:
        assert await namespace(one.pid) != await namespace(other.pid)
        await one.tell("grow 90")
        with await MemoryMeter.of(one.pid, table) as big, await MemoryMeter.of(other.pid, table) as small:
            assert await exact(big) > 90 * MIB
            assert await exact(small) < 60 * MIB


async def test_without_a_namespace_of_its_own_the_descendants_are_measured(table: ProcessTable) -> None:
    async with allocating() as it:
        assert await namespace(it.pid) == await namespace(os.getpid())
        with await MemoryMeter.of(it.pid, table) as meter:
            start = await exact(meter)
            await it.tell("share 50 1")
            await it.tell("grow 50")
            assert start + 100 * MIB - SLACK <= await exact(meter) < start + 140 * MIB + SLACK


async def test_excess_is_reported_once_and_ends_the_watch(table: ProcessTable) -> None:
    async with allocating(*NAMESPACES) as it:
        seen: list[int] = []

        async def kill(used: int) -> None:
            seen.append(used)
            os.kill(it.pid, signal.SIGKILL)

        with await MemoryMeter.of(it.pid, table) as meter:
            watch = asyncio.create_task(watch_memory(meter, limit_bytes=100 * MIB, on_excess=kill, interval=0.01))
            await it.tell("grow 30")
            await it.tell("grow 30")
            assert not watch.done()
            with suppress(AssertionError):  # it may be killed before it can answer
                await it.tell("grow 120")
            await asyncio.wait_for(watch, 60)
            assert len(seen) == 1
            assert seen[0] > 100 * MIB
            assert meter.peak_bytes == seen[0]
            await it.process.wait()
            assert await meter.measure(HUGE) is None


async def test_the_watch_ends_with_the_container(table: ProcessTable) -> None:
    async def never(used: int) -> None:
        raise AssertionError(used)

    async with allocating(*NAMESPACES) as it:
        with await MemoryMeter.of(it.pid, table) as meter:
            watch = asyncio.create_task(watch_memory(meter, limit_bytes=HUGE, on_excess=never, interval=0.01))
            os.kill(it.pid, signal.SIGKILL)
            await asyncio.wait_for(watch, 60)
            assert meter.peak_bytes >= 0


async def test_a_process_that_has_ended_measures_nothing(table: ProcessTable) -> None:
    async with allocating() as it:
        pid = it.pid
        meter = await MemoryMeter.of(pid, table)
        assert await meter.measure(HUGE) is not None
    assert await meter.measure(HUGE) is None
    assert await (await MemoryMeter.of(pid, table)).measure(HUGE) is None
    meter.close()
    meter.close()


class FakeProc:
    """A made-up /proc: processes with a namespace (by number), and sizes in KiB."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.add(os.getpid(), namespace=0)

    def add(self, pid: int, *, namespace: int | None, rss: int = 0, pss: int | None = None, parent: int = 1) -> None:
        directory = self.top / str(pid)
        (directory / "ns").mkdir(parents=True)
        if namespace is not None:
            inode = self.top / f"namespace-{namespace}"
            inode.touch()
            os.link(inode, directory / "ns" / "pid")
        (directory / "stat").write_text(f"{pid} (a b) c) S {parent} " + " ".join(["0"] * 17) + " 777 0")
        self.sizes(pid, rss=rss, pss=pss)

    def sizes(self, pid: int, *, rss: int, pss: int | None = None) -> None:
        pages = rss * 1024 // os.sysconf("SC_PAGE_SIZE")
        (self.top / str(pid) / "statm").write_text(f"99999 {pages} 1 1 0 1 0\n")
        if pss is not None:
            (self.top / str(pid) / "smaps_rollup").write_text(f"0-1 ---p 0 [rollup]\nRss: 9 kB\nPss:  {pss} kB\n")


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    (tmp_path / "self").mkdir()
    return FakeProc(tmp_path)


def test_pss_counts_where_it_can_be_read_and_rss_elsewhere(fake: FakeProc) -> None:
    table = ProcessTable(proc=fake.top, max_age=0)
    fake.add(20, namespace=7, rss=1000, pss=600)
    fake.add(21, namespace=7, rss=2000)
    fake.add(22, namespace=8, rss=4000)
    fake.add(23, namespace=None, rss=8000)
    with MemoryMeter(20, table) as meter:
        assert meter.sample(0) == 2600 * 1024
    table.executor.shutdown()


def test_the_exact_measure_is_taken_for_excess_and_for_a_new_peak_alone(fake: FakeProc) -> None:
    table = ProcessTable(proc=fake.top, max_age=0)
    fake.add(20, namespace=7, rss=1600, pss=800)
    with MemoryMeter(20, table) as meter:
        assert meter.sample(1 << 30) == 800 * 1024
        fake.sizes(20, rss=1640, pss=840)  # not a sixteenth more
        assert meter.sample(1 << 30) == 1640 * 1024
        assert meter.peak_bytes == 800 * 1024
        assert meter.sample(1000 * 1024) == 840 * 1024
        fake.sizes(20, rss=3200, pss=900)
        assert meter.sample(1 << 30) == 900 * 1024
        fake.sizes(20, rss=400, pss=200)
        assert meter.sample(1 << 30) == 400 * 1024
        assert meter.peak_bytes == 900 * 1024
    table.executor.shutdown()


def test_one_scan_serves_all_who_ask_within_its_age(fake: FakeProc) -> None:
    now = [100.0]
    table = ProcessTable(proc=fake.top, max_age=1, clock=lambda: now[0])
    fake.add(20, namespace=7)
    inode = namespace_of(fake.top, 20)
    assert inode is not None
    assert table.members(inode) == [20]
    fake.add(21, namespace=7)
    assert table.members(inode) == [20]
    now[0] += 1
    assert sorted(table.members(inode)) == [20, 21]
    table.executor.shutdown()


def test_descendants_follow_the_parents(fake: FakeProc) -> None:
    table = ProcessTable(proc=fake.top)
    for pid, parent in ((30, 1), (31, 30), (32, 31), (33, 1), (34, 30)):
        fake.add(pid, namespace=0, parent=parent)
    assert sorted(table.descendants(30)) == [30, 31, 32, 34]
    assert table.descendants(99) == []
    table.executor.shutdown()
