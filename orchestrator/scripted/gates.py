"""Gates: points of a script where a stream waits until it is let through, so that a test needs no sleeps."""

from __future__ import annotations

import asyncio


class Gate:
    """Closed at first."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._open = False
        self._passes = 0
        self._waiting = 0

    async def wait(self) -> None:
        """Wait to be let through."""
        async with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: self._open or self._passes > 0)
                if not self._open:
                    self._passes -= 1
            finally:
                self._waiting -= 1

    async def reached(self) -> None:
        """Wait until a stream waits here."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting > 0)

    async def release(self, times: int | None) -> None:
        """Let ``times`` streams through; None: open it for all to come."""
        async with self._changed:
            if times is None:
                self._open = True
            else:
                self._passes += times
            self._changed.notify_all()

    async def hold(self) -> None:
        """Close it again."""
        async with self._changed:
            self._open, self._passes = False, 0
