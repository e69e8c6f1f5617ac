"""Keeps input that is expensive to parse from holding up the relay for everybody: small pieces, pauses in between.

A body that is cut into chunks of one byte costs a thousand times what its size says.  Whatever is read through
``Paced`` is handed on a few KiB at a time, and while a run's pieces are expensive all its connections together get a
quarter of the relay's time.  What is cheap to read is not slowed down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

PIECE: Final = 8 * 1024
"""Bytes that are handed on at a time."""
FREE_SECONDS: Final = 0.001
"""What a piece may take without a pause after it."""
PAUSE: Final = 3.0
"""Length of the pause, in times of what the piece took."""


class Pace:
    """Shared by the connections of one run.  ``clock``: any monotonic one, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._paused_until = 0.0

    def wait(self) -> float:
        """Seconds until the next piece may be handed on; 0: now."""
        return max(0.0, self._paused_until - self._clock())

    def work(self, do: Callable[[], object]) -> None:
        """Hand on one piece by ``do``; an expensive one is followed by a pause for all of the run's connections."""
        began = self._clock()
        do()
        now = self._clock()
        if now - began > FREE_SECONDS:
            self._paused_until = now + PAUSE * (now - began)


class _View:
    """A transport that reads when ``inner`` wants to and there is nothing left to hand on; all else as it is."""

    def __init__(self, transport: asyncio.Transport, flow: Callable[[], None]) -> None:
        self._transport = transport
        self._flow = flow
        self.wanted = True

    def pause_reading(self) -> None:
        self.wanted = False
        self._flow()

    def resume_reading(self) -> None:
        self.wanted = True
        self._flow()

    def is_reading(self) -> bool:
        return self.wanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Paced(asyncio.Protocol):
    """Stands before ``inner``, which sees everything as if it stood at the connection itself."""

    def __init__(self, inner: asyncio.Protocol, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace
        self._transport: asyncio.Transport | None = None
        self._view: _View | None = None
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give ``inner`` a transport whose reading it can pause as usual."""
        self._transport = cast("asyncio.Transport", transport)
        self._view = _View(self._transport, self._flow)
        self._inner.connection_made(cast("asyncio.Transport", self._view))

    def data_received(self, data: bytes) -> None:
        """Buffer it, and hand on what the pace lets through now."""
        self._buffer += data
        if self._timer is None:
            self._work()

    def eof_received(self) -> bool | None:
        """Passed on behind everything that is still buffered."""
        self._ended = True
        return True if self._buffer else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Passed on at once."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Passed on at once."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """What has not been handed on is of no use any more."""
        self._transport = None
        self._buffer.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(error)

    def _work(self) -> None:
        self._timer = None
        while self._buffer:
            if self._transport is None or self._transport.is_closing():
                self._buffer.clear()
                return
            if wait := self._pace.wait():
                self._timer = asyncio.get_running_loop().call_later(wait, self._work)
                break
            piece = bytes(self._buffer[:PIECE])
            del self._buffer[:PIECE]
            self._pace.work(lambda piece=piece: self._inner.data_received(piece))  # type: ignore[misc]
        if not self._ended:
            self._flow()
        elif not self._buffer and self._transport is not None and not self._inner.eof_received():
            self._transport.close()

    def _flow(self) -> None:
        if self._transport is None or self._view is None or self._ended:
            return  # a transport that is read again behind its end would report the end again
        if self._view.wanted and self._timer is None:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
