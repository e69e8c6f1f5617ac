"""One connection of the service to a relay: requests out, answers in, its end noticed at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import InvalidRequestError, RelayRefusedError, SandboxError
from orchestrator.relay.protocol import MAX_LINE, VERSION, decode, encode
from orchestrator.system.peers import peer_of, same_user
from orchestrator.system.tasks import TaskOwner

CALL_SECONDS: Final = 15.0
"""What the relay has to answer one request."""


class ConnectionLostError(Exception):
    """The relay has closed the connection or died; whether the request was carried out is not known."""


class RelayConnection:
    """A connection that was greeted; made by ``open``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[object, asyncio.Future[dict[str, Any]]] = {}
        self.lost = False
        self.pid, _ = peer_of(writer.get_extra_info("socket"))

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        owner: TaskOwner,
        on_lost: Callable[[RelayConnection], None],
        on_push: Callable[[RelayConnection, dict[str, Any]], None] = lambda *_: None,
    ) -> RelayConnection | None:
        """Connect and greet; None when no relay answers there.

        ``on_lost`` is called once when the connection ends by itself, ``on_push`` with what the relay pushes.
        Raises: SandboxError when something answers that is not our relay, or a relay hangs.
        """
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
        except OSError:  # TimeoutError too
            return None
        if not same_user(writer.get_extra_info("socket")):
            writer.close()
            raise SandboxError(f"{path} is served by another user; remove it")
        connection = cls(reader, writer)
        owner.spawn(connection._listen(on_lost, on_push), name="connection")
        try:
            await connection.call("hello", version=VERSION)
        except ConnectionLostError:
            await connection.aclose()
            return None
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises: ConnectionLostError; InvalidRequestError and RelayRefusedError by what the relay says; SandboxError when
        it does not answer in time.
        """
        if self.lost:
            raise ConnectionLostError
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(CALL_SECONDS):
                self._writer.write(encode({"id": number, "op": op, **fields}))
                await self._writer.drain()
                answer = await future
        except TimeoutError:
            raise SandboxError(f"the relay (process {self.pid}) does not answer; end it by: kill {self.pid}") from None
        except OSError:
            raise ConnectionLostError from None
        finally:
            self._waiting.pop(number, None)
        if answer.get("ok") is True:
            return answer
        if answer.get("code") == InvalidRequestError.code:
            raise InvalidRequestError(str(answer.get("error")))
        raise RelayRefusedError(str(answer.get("error")))

    async def aclose(self) -> None:
        """Close without a call of ``on_lost``."""
        self._end()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    def _end(self) -> None:
        self.lost = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLostError())

    async def _listen(
        self, on_lost: Callable[[RelayConnection], None], on_push: Callable[[RelayConnection, dict[str, Any]], None]
    ) -> None:
        try:
            # Between answers the relay is silent, for as long as there is nothing to ask.
            while line := await self._reader.readline():
                answer = decode(line)
                if "push" in answer:
                    on_push(self, answer)
                    continue
                future = self._waiting.get(answer.get("id"))
                if future is not None and not future.done():
                    future.set_result(answer)
        except (OSError, ValueError, InvalidRequestError):
            pass  # a connection that is broken or out of step is of no more use
        finally:
            reported = self.lost
            self._end()
            self._writer.close()
            if not reported:
                on_lost(self)
