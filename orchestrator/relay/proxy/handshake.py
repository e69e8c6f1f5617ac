"""A connection to the proxy until it is joined or refused: reads the one head that it may bring."""

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
"""Taken and dropped from a client that was refused, so that it comes to read why."""


class Visitor(asyncio.Protocol):
    """The client's end before there is another one.  Exactly one of ``join`` and ``refuse`` follows ``on_head``."""

    def __init__(
        self,
        tunnel: Tunnel,
        *,
        on_head: Callable[[Visitor, Head], None],
        on_error: Callable[[Visitor, WireError], None],
        on_gone: Callable[[Visitor], None],
    ) -> None:
        self.tunnel = tunnel
        self.refusal: bytes | None = None
        """Said at once, whatever the client wants."""
        self._on_head = on_head
        self._on_error = on_error
        self._on_gone = on_gone
        self._reader = HeadReader()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = b""
        self._asked = False
        self._refused = False
        self._dropped = 0

    @property
    def alive(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, transport.abort)
        if self.refusal is not None:
            self.refuse(self.refusal)

    def data_received(self, data: bytes) -> None:
        """A piece of the head."""
        if self._refused:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.abort()
            return
        if self._asked:
            self._waiting += data  # read before reading was paused
            return
        try:
            head = self._reader.feed(data)
        except WireError as error:
            self._on_error(self, error)
            return
        if head is not None:
            self._asked = True
            self._waiting = self._reader.rest
            assert self._transport is not None
            self._transport.pause_reading()
            self._cancel()
            self._on_head(self, head)

    def eof_received(self) -> bool:
        """A client that stops here has not asked for anything; one that was refused has heard it."""
        return False

    def refuse(self, message: bytes) -> None:
        """Say no, and let go of the client when it has had the time to read that."""
        self._refused = True
        self._cancel()
        if self.alive:
            assert self._transport is not None
            self._transport.write(message)
            self._transport.write_eof()
            self._transport.resume_reading()
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def join(self, message: bytes, *, pace: Pace | None = None) -> None:
        """Hand the connection over to the tunnel; ``message`` is said to the client first."""
        assert self._transport is not None
        end = self.tunnel.client
        protocol = end if pace is None else Paced(end, pace)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        self._transport.write(message)
        self._transport = None
        self._on_gone(self)
        self.tunnel.join()
        if end.transport is not None:
            end.transport.resume_reading()
        if self._waiting:
            protocol.data_received(self._waiting)

    def abort(self) -> None:
        """Cut it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        del error
        self._cancel()
        self._transport = None
        self._on_gone(self)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Shut(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Without a word."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
