"""Memory that need not be mapped: tmpfs mounts of a made-up /proc, and real memfds of this process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from orchestrator.runs.limits.shared_memory import SharedMemory

MIB = 1024 * 1024
PID = 77


class FakeProc:
    def __init__(self, top: Path) -> None:
        self.top = top
        (top / str(PID) / "root" / "tmp dir").mkdir(parents=True)
        (top / str(PID) / "fd").mkdir()
        self.shmem(0)

    def shmem(self, size: int) -> None:
        (self.top / "meminfo").write_text(f"MemTotal: 9 kB\nShmem:     {size // 1024} kB\nShmemHugePages: 0 kB\n")

    def mounts(self, *lines: str) -> None:
        (self.top / str(PID) / "mountinfo").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_only_whole_writable_tmpfs_mounts_are_its_own(fake: FakeProc) -> None:
    fake.mounts(
        r"1 0 0:49 / /tmp\040dir rw,nosuid shared:1 - tmpfs tmpfs rw,size=64k",
        r"2 0 0:49 / /again rw - tmpfs tmpfs rw",
        r"3 0 0:50 /user/1000 /etc/hosts rw - tmpfs tmpfs rw",  # a part of the host's
        r"4 0 0:51 / /proc/acpi ro - tmpfs tmpfs ro",
        r"5 0 254:0 / /home/agent rw - ext4 /dev/vda rw",
    )
    memory = SharedMemory(PID, fake.top)
    assert memory._mounts == {"0:49": "/tmp dir"}
    assert memory.in_files() > 0, "what the file system of the fake has in use"


def test_what_the_machine_has_gained_is_a_bound(fake: FakeProc) -> None:
    now = [100.0]
    memory = SharedMemory(PID, fake.top, clock=lambda: now[0])
    assert memory.bound([PID]) == 0
    fake.shmem(50 * MIB)
    assert memory.bound([PID]) == 50 * MIB
    now[0] += 3  # the memfds are looked for, and there are none
    assert memory.bound([PID]) == 0


def test_a_memfd_counts_once_mapped_or_not() -> None:
    memory = SharedMemory(os.getpid(), Path("/proc"))
    pids = [os.getpid()]
    memory._mounts = {}
    before = memory.exact(pids, 0)
    fd = os.memfd_create("x")
    try:
        os.write(fd, bytes(20 * MIB))
        assert memory.exact(pids, 0) == before + 20 * MIB
        with mmap.mmap(fd, 20 * MIB) as mapped:
            assert sum(mapped[at] for at in range(0, 20 * MIB, 4096)) == 0
            assert memory.exact(pids, 20 * MIB) <= before + MIB
    finally:
        os.close(fd)


def test_without_any_of_it_nothing_is_counted(tmp_path: Path) -> None:
    memory = SharedMemory(PID, tmp_path)
    assert memory.bound([PID]) == 0
    assert memory.exact([PID], 5 * MIB) == 0
