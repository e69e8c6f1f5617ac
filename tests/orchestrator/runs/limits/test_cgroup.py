"""The kernel's own word on memory: a made-up cgroup directory, and a run that is ended by it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.sandbox import SandboxExit, StartedSandbox
from orchestrator.contract.types import ResourceLimits
from orchestrator.runs.limits.cgroup import CgroupMemory
from orchestrator.runs.limits.memory_watchdog import MemoryMeter, ProcessTable
from orchestrator.runs.limits.monitor import RunMonitor

MIB = 1024 * 1024
LIMIT = 64 * MIB


def write(directory: Path, *, kills: int = 0, used: int = 0, name: str = "memory.peak") -> None:
    (directory / name).write_text(f"{used}\n")
    (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\noom 1\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "cgroup" / "user.slice" / "box.scope" / "container"
    made.mkdir(parents=True)
    write(made)
    return made


# --- finding it ---


def found(tmp_path: Path, text: str) -> CgroupMemory | None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(text)
    return CgroupMemory.of(7, proc=tmp_path / "proc", root=tmp_path / "cgroup")


def test_a_process_is_found_in_its_cgroup(tmp_path: Path, directory: Path) -> None:
    memory = found(tmp_path, "0::/user.slice/box.scope/container\n")
    assert memory is not None
    write(directory, kills=2, used=5)
    memory.read()
    assert (memory.kills, memory.peak_bytes) == (2, 5)


@pytest.mark.parametrize("text", ["5:memory:/user.slice/box.scope/container\n", "0::/elsewhere\n", "", "nonsense\n"])
def test_where_there_is_no_such_cgroup_there_is_nothing(tmp_path: Path, directory: Path, text: str) -> None:
    assert found(tmp_path, text) is None


def test_a_process_that_has_ended_has_none(tmp_path: Path) -> None:
    assert CgroupMemory.of(7, proc=tmp_path) is None


# --- reading it ---


def test_an_old_kernel_tells_the_use_of_now_and_the_highest_is_kept(directory: Path) -> None:
    (directory / "memory.peak").unlink()
    memory = CgroupMemory(directory)
    for used in (3, 9, 5):
        write(directory, used=used, name="memory.current")
        memory.read()
    assert memory.peak_bytes == 9


def test_what_was_read_stays_when_the_cgroup_goes(directory: Path) -> None:
    write(directory, kills=1, used=8)
    memory = CgroupMemory(directory)
    memory.read()
    for name in ("memory.events", "memory.peak"):
        (directory / name).unlink()
    directory.rmdir()
    memory.read()
    assert (memory.kills, memory.peak_bytes) == (1, 8)


def test_near_is_nine_tenths() -> None:
    memory = CgroupMemory(Path("/nowhere"))
    memory.peak_bytes = 90
    assert memory.near(100)
    assert not memory.near(101)


# --- waiting for a kill ---


async def test_a_kill_is_noticed_when_it_happens(directory: Path) -> None:
    memory = CgroupMemory(directory)
    waiting = asyncio.ensure_future(memory.killed(LIMIT))
    write(directory, used=LIMIT)  # the limit was met, nothing has been killed
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    write(directory, kills=1, used=LIMIT)
    await asyncio.wait_for(waiting, 10)


async def test_a_kill_from_before_counts(directory: Path) -> None:
    write(directory, kills=1, used=LIMIT)
    await asyncio.wait_for(CgroupMemory(directory).killed(LIMIT), 10)


async def test_a_kill_far_below_the_limit_is_not_the_limits(directory: Path) -> None:
    """The machine itself was out of memory."""
    write(directory, kills=1, used=MIB)
    waiting = asyncio.ensure_future(CgroupMemory(directory).killed(LIMIT))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    waiting.cancel()
    await asyncio.wait({waiting})


# --- a run that it ends ---


class Record:
    run_id = "0123456789"
    limits = ResourceLimits(memory_max_bytes=LIMIT)


@pytest.fixture
async def sandbox() -> AsyncIterator[StartedSandbox]:
    """A real process, so that there is something to measure."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    yield StartedSandbox(container_id="c", conmon_pid=process.pid, init_pid=process.pid)
    process.kill()
    await process.wait()


@pytest.fixture
async def table() -> AsyncIterator[ProcessTable]:
    table = ProcessTable()
    yield table
    await table.aclose()


@pytest.fixture
def monitor(directory: Path, table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> RunMonitor:
    monkeypatch.setattr(CgroupMemory, "of", lambda pid: CgroupMemory(directory))
    record: Any = Record()
    unasked: Any = None
    return RunMonitor(record, unasked, disk=unasked, processes=table, warn=unasked)


async def test_a_killed_tool_ends_the_run_though_the_agent_lives(
    monitor: RunMonitor, sandbox: StartedSandbox, table: ProcessTable, directory: Path
) -> None:
    measuring = asyncio.ensure_future(monitor._measure(sandbox, by_cgroup=True))
    try:
        write(directory, kills=1, used=LIMIT)
        await asyncio.wait_for(monitor.stop.wait(), 10)
    finally:
        measuring.cancel()
        await asyncio.wait({measuring})
    assert monitor.verdict is not None
    assert monitor.verdict.reason == "memory_exceeded"
    assert monitor.verdict.details == {
        "limit": "memory_max_bytes",
        "limit_bytes": LIMIT,
        "used_bytes": LIMIT,
        "enforcement": "cgroup",
    }
    assert not monitor.polite


async def test_without_a_memory_controller_the_cgroup_is_not_asked(
    monitor: RunMonitor, sandbox: StartedSandbox, table: ProcessTable, directory: Path
) -> None:
    write(directory, kills=1, used=LIMIT)
    measuring = asyncio.ensure_future(monitor._measure(sandbox, by_cgroup=False))
    stopped = asyncio.ensure_future(monitor.stop.wait())
    await asyncio.wait({stopped}, timeout=0.2)
    for task in (measuring, stopped):
        task.cancel()
    await asyncio.wait({measuring, stopped})
    assert monitor.verdict is None


@pytest.mark.parametrize(
    ("kills", "used", "code", "said"),
    [
        (1, LIMIT, 137, "wanted more memory than their limit of 64 MiB"),
        (0, LIMIT, 137, "wanted more memory than their limit of 64 MiB"),  # the count was lost with the cgroup
        (1, MIB, 137, "memory on the machine"),
        (0, MIB, 137, None),  # somebody else's SIGKILL
        (0, LIMIT, 0, None),
        (1, MIB, 1, None),
    ],
)
async def test_the_end_of_a_sandbox_is_understood_without_podmans_word(
    monitor: RunMonitor, directory: Path, kills: int, used: int, code: int, said: str | None
) -> None:
    monitor._by_cgroup, monitor._kernel = True, CgroupMemory(directory)
    write(directory, kills=kills, used=used)
    monitor._kernel.read()
    error = monitor.out_of_memory(SandboxExit(exit_code=code))
    assert (error is None) == (said is None)
    if error is not None:
        assert said is not None
        assert error.reason == "memory_exceeded"
        assert said in error.message
        assert error.details["used_bytes"] == used


async def test_the_use_that_is_told_is_what_the_kernel_counted(
    monitor: RunMonitor, sandbox: StartedSandbox, table: ProcessTable, directory: Path
) -> None:
    """The processes' own sizes have pages that are charged elsewhere: more than the limit that the kernel has kept."""
    with await MemoryMeter.of(sandbox.init_pid, table) as meter:
        meter.peak_bytes = 2 * LIMIT
        monitor._meter, monitor._by_cgroup, monitor._kernel = meter, True, CgroupMemory(directory)
        write(directory, kills=1, used=LIMIT)
        monitor._kernel.read()
        error = monitor.out_of_memory(SandboxExit(exit_code=137))
    assert error is not None
    assert error.details["used_bytes"] == LIMIT
