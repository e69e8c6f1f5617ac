"""A client's connection to the proxy until it is joined to a host or refused: reads the one head that it may send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orchestrator.relay.pace import Pace, Paced
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.request import Head, HeadReader
from orchestrator.relay.proxy.tunnel import Tunnel

HEAD_SECONDS: Final = 30.0
"""What a client has to send its head."""
LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 4 * 1024 * 1024
"""Read and dropped from a client that was refused, so that it gets to read why."""


class Handshake(asyncio.Protocol):
    """The client's end before there is another one.  Exactly one of ``join`` and ``refuse`` follows ``on_head``."""

    def __init__(
        self,
        tunnel: Tunnel,
        *,
        on_head: Callable[[Handshake, Head], None],
        on_error: Callable[[Handshake, WireError], None],
        on_end: Callable[[Handshake], None],
    ) -> None:
        self.tunnel = tunnel
        self.refusal: bytes | None = None
        """Sent at once, whatever the client asks for."""
        self._on_head = on_head
        self._on_error = on_error
        self._on_end = on_end
        self._reader = HeadReader()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = b""
        self._complete = False
        self._refused = False
        self._dropped = 0

    @property
    def alive(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time that the client has, or refuse it at once."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, transport.abort)
        if self.refusal is not None:
            self.refuse(self.refusal)

    def data_received(self, data: bytes) -> None:
        """Read a piece of the head; after it, keep what comes for the tunnel or drop it."""
        if self._refused:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.abort()
            return
        if self._complete:
            self._waiting += data  # read before reading was paused
            return
        try:
            head = self._reader.feed(data)
        except WireError as error:
            self._on_error(self, error)
            return
        if head is not None:
            self._complete = True
            self._waiting = self._reader.rest
            assert self._transport is not None
            self._transport.pause_reading()
            self._cancel()
            self._on_head(self, head)

    def eof_received(self) -> bool:
        """Close: a client that stops here has not asked for anything, or was refused already."""
        return False

    def refuse(self, message: bytes) -> None:
        """Send ``message`` and close the connection once the client has had the time to read it."""
        self._refused = True
        self._cancel()
        if self.alive:
            assert self._transport is not None
            self._transport.write(message)
            self._transport.write_eof()
            self._transport.resume_reading()
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def join(self, message: bytes, *, pace: Pace | None = None) -> None:
        """Hand the connection over to the tunnel; ``message`` is sent to the client first."""
        assert self._transport is not None
        end = self.tunnel.client
        protocol = end if pace is None else Paced(end, pace)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        self._transport.write(message)
        self._transport = None
        self._on_end(self)
        self.tunnel.join()
        if end.transport is not None:
            end.transport.resume_reading()
        if self._waiting:
            protocol.data_received(self._waiting)

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone: nothing will be sent to it any more."""
        del error
        self._cancel()
        self._transport = None
        self._on_end(self)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Abort(asyncio.Protocol):
    """Closes a connection at once, without an answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reset the connection."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
