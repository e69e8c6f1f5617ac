"""One request to a libpod socket, by podman-py in a thread of a pool, with a time limit, classified when it fails.

Our own JSON goes through podman-py's API client, not its ``containers.create``: that one knows only part of libpod's
create body, and what it does not know it drops.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from podman import PodmanClient
from podman.api.uds import UDSConnection, UDSConnectionPool, UDSSocket
from requests import exceptions as requests_errors

from orchestrator.errors import RuntimeUnavailableError
from orchestrator.podman import failures

Method = Literal["GET", "POST", "DELETE"]

API_VERSION: Final = "4.0.0"
"""The oldest that 4.3 serves, and still served by 5.x."""
PING_WORKERS: Final = 2
GRACE: Final = 2.0
"""Seconds that a call may take beyond its limit before it is given up here (its thread ends by its own limit)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status below 400; ``body`` is the decoded JSON, or the text when it is none."""

    status: int
    body: Any


class _Connection(UDSConnection):  # type: ignore[misc]  # podman-py has no types
    """podman-py's connection leaves its socket open when nobody listens; this one closes it."""

    def connect(self) -> None:
        socket = UDSSocket(self.uds)
        try:
            socket.settimeout(self.timeout)
            socket.connect()
        except BaseException:
            socket.close()
            raise
        self.sock = socket


class _Pool(UDSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Connection


class Transport:
    """Sends requests to sockets; safe to use from many tasks at once."""

    def __init__(self, *, workers: int) -> None:
        self._workers = workers
        self._pools: dict[tuple[Path, bool], ThreadPoolExecutor] = {}
        self._clients: dict[Path, Any] = {}
        self._lock = threading.Lock()

    async def call(
        self,
        socket: Path,
        method: Method,
        path: str,
        *,
        timeout: float,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        ping: bool = False,
    ) -> Reply:
        """``path`` is below ``/v4.0.0/libpod`` and must be quoted.  Raises SandboxError as ``failures`` decides.

        A cancelled call goes on in its thread: whoever must know what became of it has to shield it.  Calls to one
        socket that hang keep no thread from calls to another one, nor from a ``ping``.
        """
        data = None if body is None else json.dumps(body)
        future = asyncio.get_running_loop().run_in_executor(
            self._pool(socket, ping=ping), self._send, socket, method, path, params, data, timeout
        )
        try:
            async with asyncio.timeout(timeout + GRACE):
                return await future
        except TimeoutError:
            raise failures.classify(None, failures.TIMED_OUT) from None

    def _pool(self, socket: Path, *, ping: bool) -> ThreadPoolExecutor:
        if (found := self._pools.get((socket, ping))) is None:
            workers = PING_WORKERS if ping else self._workers
            found = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="podman")
            self._pools[socket, ping] = found
        return found

    def _client(self, socket: Path) -> Any:
        with self._lock:
            if socket not in self._clients:
                client = PodmanClient(
                    base_url=f"unix://{socket}", version=API_VERSION, max_pool_size=self._workers + PING_WORKERS
                )
                pools = client.api.get_adapter("http://").poolmanager
                pools.pool_classes_by_scheme = dict.fromkeys(pools.pool_classes_by_scheme, _Pool)
                self._clients[socket] = client
            return self._clients[socket]

    def _send(
        self,
        socket: Path,
        method: Method,
        path: str,
        params: Mapping[str, str] | None,
        data: str | None,
        timeout: float,
    ) -> Reply:
        try:
            api = self._client(socket).api
            if method == "GET":
                response = api.get(path, params=params, timeout=timeout)
            elif method == "DELETE":
                response = api.delete(path, params=params, timeout=timeout)
            else:
                headers = {"Content-Type": "application/json"}
                response = api.post(path, params=params, data=data, headers=headers, timeout=timeout)
        except (OSError, requests_errors.RequestException) as error:
            raise failures.classify(None, unreached(error)) from error
        text: str = response.text
        if response.status_code >= 400:
            raise failures.classify(response.status_code, message_of(text))
        try:
            return Reply(response.status_code, json.loads(text) if text.strip() else None)
        except ValueError:
            return Reply(response.status_code, text)

    def aclose(self) -> None:
        """Close the connections.  Threads still waiting for Podman end by their time limit."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            with contextlib.suppress(OSError):
                client.close()
        self._clients.clear()


def message_of(text: str) -> str:
    """The message in an error body of libpod, or the body itself."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if isinstance(body, dict):
        for key in ("message", "cause"):
            if isinstance(body.get(key), str) and body[key]:
                return str(body[key])
    return text


def unreached(error: BaseException) -> str:
    """Why no answer came, in the words that ``failures`` knows."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        match current:
            case ConnectionRefusedError():
                return failures.REFUSED
            case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
                return failures.RESET
            case FileNotFoundError():
                return failures.NO_SOCKET
            case TimeoutError() | requests_errors.Timeout():
                return failures.TIMED_OUT
            case _:
                current = current.__cause__ or current.__context__
    return f"{type(error).__name__}"


def object_body(reply: Reply, what: str) -> dict[str, Any]:
    """The body, which has to be a JSON object.  Raises RuntimeUnavailableError when something else answered."""
    if not isinstance(reply.body, dict):
        raise RuntimeUnavailableError(f"the Podman service gave no object for {what}", status=reply.status)
    return reply.body
