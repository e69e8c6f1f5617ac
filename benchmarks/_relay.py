"""What the benchmarks of the relay share: a server in a process of its own, and a bare ``socat`` to compare with."""

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

MEBI = 1024 * 1024


@contextlib.asynccontextmanager
async def socat(path: Path, port: int, *options: str) -> AsyncIterator[None]:
    """A socat from a Unix socket to a port of this machine."""
    process = await asyncio.create_subprocess_exec(
        "socat", *options, f"UNIX-LISTEN:{path},fork,unlink-early", f"TCP:127.0.0.1:{port}"
    )
    try:
        while not path.exists():  # socat has no other way to say that it is ready
            await asyncio.sleep(0.01)
        yield
    finally:
        process.terminate()
        await process.wait()


def quantile(values: list[float], share: float) -> float:
    """In milliseconds, of values in seconds."""
    ordered = sorted(values)
    if share == 0.5:
        return statistics.median(ordered) * 1e3
    return ordered[int(len(ordered) * share)] * 1e3


def main(
    description: str | None,
    *,
    counted: str,
    mebibytes: int,
    serve: Callable[[Connection], None],
    measure: Callable[[Path, int, argparse.Namespace], Awaitable[None]],
) -> None:
    """Entry point.  ``counted``: what is measured one after the other; ``serve`` sends its port through the pipe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{counted}", dest="count", type=int, default=300, help="per round and way")
    parser.add_argument("--mebibytes", type=int, default=mebibytes, help="of the stream")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()

    async def measured() -> None:
        with tempfile.TemporaryDirectory(prefix="pm-") as directory:
            await measure(Path(directory), here.recv(), args)

    asyncio.run(measured())
    server.terminate()
    server.join()
