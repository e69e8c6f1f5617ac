"""What the disk watch costs: a walk over many files against ``du``, and the watch of an idle run for a minute's looks.

    python benchmarks/disk.py [FILES...]        default: 1000 100000

Prints one line per size: a walk and du in milliseconds (best of three) and their ratio; the processor time of one look
that need not walk; and the part of one processor that the watch of an idle run takes, walks included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.runs.limits.disk_limit import INTERVAL
from orchestrator.runs.limits.disk_meter import ROUTINE, ROUTINE_SECONDS, DiskMeter, DiskPlaces, Inside

LOOKS = 2000
NOBODY = Inside(init_pid=2**22 + 1, pids=list)


def best(work: Callable[[], object]) -> float:
    """Milliseconds of the fastest of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def measure(files: int) -> str:
    """One line of figures."""
    with tempfile.TemporaryDirectory() as top:
        home = Path(top, "home")
        for number in range(100):
            (home / f"d{number}").mkdir(parents=True)
        for number in range(files):
            (home / f"d{number % 100}" / str(number)).write_text(f"{number}\n")
        meter = DiskMeter(DiskPlaces((home,)), limit_bytes=1 << 40)
        walk = best(meter.first)
        du = best(lambda: subprocess.run(["du", "-sx", home], stdout=subprocess.DEVNULL, check=True))
        meter.first()
        began = time.process_time()
        looks = 0
        until = time.monotonic() + 3
        while looks < LOOKS and time.monotonic() < until:
            meter.tick(1 << 40, NOBODY)
            looks += 1
        look = (time.process_time() - began) / looks * 1e6
        between = max(ROUTINE_SECONDS * 1000, ROUTINE * walk)
        idle = look / 1e6 / INTERVAL + walk / between
        return (
            f"{files:>8} files: walk {walk:.1f} ms, du {du:.1f} ms ({walk / du:.1f} times), a look {look:.0f} us, "
            f"an idle run {idle * 100:.2f} % of a processor"
        )


if __name__ == "__main__":
    for size in sys.argv[1:] or ["1000", "100000"]:
        print(measure(int(size)))
