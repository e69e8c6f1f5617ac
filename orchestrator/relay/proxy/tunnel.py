"""Joins two connections: what comes in at one end goes out at the other, as it comes.

Each end stops reading while the other cannot write.  The end of one direction is passed on as such; the
other direction goes on.  What breaks off at one end breaks off at the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from orchestrator.relay.proxy.http1.body import BodyError
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.response import answer

HIGH_WATER: Final = 512 * 1024
"""Bytes that may wait to be written before the other end is not read any more."""
FLUSH_SECONDS: Final = 30.0
"""What an end has to take the last bytes."""


class Filter(Protocol):
    """Checks one direction of a plain HTTP exchange and finds its end."""

    @property
    def done(self) -> bool:
        """Everything has come: what is behind it is dropped."""
        ...

    def feed(self, data: bytes) -> bytes:
        """What goes on.  Raises: BodyError, WireError."""
        ...

    def clean_end(self) -> bool:
        """Whether the direction may end here."""
        ...


class End(asyncio.Protocol):
    """One of the two connections: what it reads is written to ``other``."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.filter: Filter | None = None
        self.last = False
        """The tunnel is over when everything that comes in here has come."""
        self.count = 0
        """Bytes passed on from here."""
        self.ended = False
        """Nothing more comes from here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, with a bound on what may wait to be written to it."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Write it to the other end, through the filter if there is one."""
        self.tunnel.active = True
        other = self.other
        if other is None or other.transport is None or self.ended:
            return
        if self.filter is not None:
            try:
                data = self.filter.feed(data)
            except (BodyError, WireError) as error:
                self._fail(str(error))
                return
        if data:
            self.count += len(data)
            other.transport.write(data)
        if self.filter is not None and self.filter.done and self.last:
            self.tunnel.finish()

    def eof_received(self) -> bool:
        """Pass that on too; the other direction goes on."""
        self.ended = True
        if self.filter is not None and not self.filter.clean_end():
            self._fail("the server closed the connection without an answer")
            return True
        other = self.other
        if other is None or other.transport is None:
            return False
        if self.last or other.ended:
            self.tunnel.finish()
        elif self.filter is None and other.transport.can_write_eof():
            other.transport.write_eof()  # not of a plain request: it says itself where it ends, and servers may mind
        return True

    def _fail(self, reason: str) -> None:
        """Cut everything; a client that has got nothing of its answer yet is sent the reason."""
        if self.last and not self.count and self.other is not None and self.other.transport is not None:
            self.other.transport.write(answer(502, reason))
            self.tunnel.finish()
        else:
            self.tunnel.abort()

    def pause_writing(self) -> None:
        """Stop reading the other end."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read the other end again."""
        self.tunnel.active = True
        if self.other is not None and self.other.transport is not None and not self.tunnel.over:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Report it to the tunnel, which a broken connection takes with it."""
        self.transport = None
        self.ended = True
        if error is not None or not self.tunnel.over:
            self.tunnel.abort()
        self.tunnel.end_lost()


class Tunnel:
    """Two ends.  ``on_end`` is called once, when both are gone."""

    def __init__(self, *, idle_seconds: float, on_end: Callable[[], None]) -> None:
        self.client = End(self)
        self.server = End(self)
        self.active = True
        """Bytes have moved since the last check."""
        self.over = False
        self._idle = idle_seconds
        self.on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._reported = False

    def join(self) -> None:
        """Let it flow, from now on with the idle time watched."""
        self.client.other, self.server.other = self.server, self.client
        self._watch()

    def _watch(self) -> None:
        self.active = False
        self._timer = asyncio.get_running_loop().call_later(self._idle, self._check)

    def _check(self) -> None:
        if self.active and not self.over:
            self._watch()
        else:
            self.abort()

    def finish(self) -> None:
        """Nothing more comes: close both ends once they have taken what is on the way to them."""
        if self.over:
            return
        self.over = True
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.abort)
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.close()

    def abort(self) -> None:
        """Reset both connections."""
        self.over = True
        self._cancel()
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.abort()

    def end_lost(self) -> None:
        """One end is gone; call ``on_end`` once both are."""
        if self._reported or self.client.transport is not None or self.server.transport is not None:
            return
        self._reported = True
        self._cancel()
        self.on_end()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
