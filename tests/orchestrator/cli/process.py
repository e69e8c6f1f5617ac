"""The command as a real process, for signals and terminals."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Command:
    """A running ``podmentor``; ``until`` waits for a text in its output (stdout and stderr together)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.text = ""

    async def until(self, text: str) -> None:
        """Read on until ``text`` was printed."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while text not in self.text:
                piece = await self.process.stdout.read(65536)
                assert piece, f"ended without {text!r}: {self.text}"
                self.text += piece.decode()

    async def end(self) -> int:
        """The exit code."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            self.text += (await self.process.stdout.read()).decode()
            return await self.process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to it alone."""
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def podmentor(*args: str, **env: str) -> AsyncIterator[Command]:
    """Start it with the fake service inside; what is still there at the end is killed and reaped."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fakes.cli_main",
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
