"""A process that takes memory when asked to.  Run as a script; reads commands on stdin, answers each with a line.

``pid``            its number outside of its namespaces
``grow N``         keep N MiB more
``share N M``      N MiB shared with M children
``orphan N``       a grandchild without a parent, cut loose with its own session, keeps N MiB
``nested N``       a process in further user and pid namespaces keeps N MiB
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024
kept: list[object] = []


def hold(mib: int) -> None:
    kept.append(bytearray(b"x" * (mib * MIB)))


def report(line: object) -> None:
    os.write(1, f"{line}\n".encode())


def forked(work: Callable[[], object]) -> None:
    """Run ``work`` in a child that stays, and wait until it is done."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        work()
        os.write(write, b"x")
        while True:
            time.sleep(60)
    os.close(write)
    os.read(read, 1)
    os.close(read)


def orphan(mib: int) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        hold(mib)
        os.write(write, b"x")
        while True:
            time.sleep(60)
    os.waitpid(child, 0)
    os.close(write)
    os.read(read, 1)


def share(mib: int, children: int) -> None:
    area = mmap.mmap(-1, mib * MIB)
    kept.append(area)
    for at in range(0, len(area), 4096):
        area[at] = 1
    for _ in range(children):
        forked(lambda: [area[at] for at in range(0, len(area), 4096)])


def nested(mib: int) -> None:
    inner = subprocess.Popen(
        ["unshare", "--user", "--pid", "--fork", sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    kept.append(inner)
    assert inner.stdin is not None
    assert inner.stdout is not None
    inner.stdin.write(f"grow {mib}\n".encode())
    inner.stdin.flush()
    assert [inner.stdout.readline(), inner.stdout.readline()] == [b"ready\n", b"done\n"]


def main() -> None:
    report("ready")
    for line in sys.stdin:
        command, *arguments = line.split()
        numbers = [int(argument) for argument in arguments]
        if command == "pid":
            report(Path("/proc/self").readlink())
            continue
        commands: dict[str, Callable[..., None]] = {"grow": hold, "orphan": orphan, "share": share, "nested": nested}
        commands[command](*numbers)
        report("done")


if __name__ == "__main__":
    main()
