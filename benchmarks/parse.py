"""How fast a restarted service reads a log, from conmon's bytes to events: each backend beside bare ``json.loads``.

    scripts/benchmark parse

The logs are those of all recordings in ``tests/recordings``, every line with a time of its own.  Both are measured in
turns, on one core.  Printed, as the median of the rounds: lines of the CLI per second, and how many times as long a
line takes as ``json.loads`` takes for it.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestrator.runs.stream.decoder import LogDecoder
from orchestrator.runs.stream.log_tail import CHUNK
from orchestrator.testing.conformance import Recording, load_all
from tests.adapters.registered import RECORDINGS, adapters

ROUNDS = 15
LINES = 5000
"""At least so many in a round: the recordings are repeated."""
PIECE = 8192
"""Longest piece of a line that conmon writes."""
BEGAN = datetime(2026, 7, 1, 12, tzinfo=UTC)


def log_of(recording: Recording) -> bytes:
    """The log that conmon would have written."""
    out: list[bytes] = []
    for number, line in enumerate(recording.lines):
        stamp = (BEGAN + timedelta(microseconds=1237 * number)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123+02:00"
        text = line.removesuffix(b"\n")
        while len(text) > PIECE:
            out.append(b"%s stdout P %s\n" % (stamp.encode(), text[:PIECE]))
            text = text[PIECE:]
        out.append(b"%s stdout F %s\n" % (stamp.encode(), text))
    return b"".join(out)


def seconds(act: Callable[[], None], times: int) -> float:
    """Processor time that it takes: others may be at work on the same core."""
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        act()
    return time.process_time() - began


def measure(backend: str) -> None:
    """One backend, all its recordings."""
    adapter = adapters()[backend]()
    recordings = load_all(RECORDINGS / backend)
    logs = [(log_of(recording), recording.exit_code) for recording in recordings]
    lines = [line for recording in recordings for line in recording.lines]
    objects = [line for line in lines if line.startswith(b"{")]
    times = -(-LINES // len(lines))

    def decode() -> None:
        for log, exit_code in logs:
            decoder = LogDecoder(adapter.parser())
            for start in range(0, len(log), CHUNK):
                decoder.feed(log[start : start + CHUNK])
            decoder.close(exit_code)

    def bare() -> None:
        for line in objects:
            try:
                json.loads(line)
            except ValueError:
                continue

    rounds = [(seconds(decode, times), seconds(bare, times)) for _ in range(ROUNDS)]
    rate = statistics.median(times * len(lines) / ours for ours, _ in rounds)
    ratio = statistics.median(ours / theirs for ours, theirs in rounds)
    print(f"{backend:12} {rate:9,.0f} lines/s   {ratio:5.2f} times json.loads")


if __name__ == "__main__":
    for name in adapters():
        measure(name)
