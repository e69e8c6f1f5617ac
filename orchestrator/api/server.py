"""The listening sockets: one TCP port, and always a Unix socket that only the service's own user can open.

What aiohttp's server answers before any handler or middleware (a request that is not HTTP, a line or a header that is
too long, an expectation that nobody can meet) is a problem like all other errors.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from orchestrator.api.context import request_id_of
from orchestrator.api.middleware import access_log, problem_answer, set_headers
from orchestrator.errors import ConfigError, ConflictError, InvalidRequestError

log = logging.getLogger(__name__)
_PATH_BYTES: Final = 107
_SLACK_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServers:
    """Both listeners, answering."""

    port: int | None
    """The TCP port in use (chosen by the system when 0 was asked for); None: no TCP."""
    unix_socket: Path
    _runner: web.AppRunner
    _inode: tuple[int, int]
    _shutdown_seconds: float

    async def aclose(self) -> None:
        """Stop listening, end open streams, close.  Takes at most twice ``shutdown_seconds`` and a little."""
        limit = 2 * self._shutdown_seconds + 2 * _SLACK_SECONDS
        try:
            await asyncio.wait_for(self._runner.cleanup(), limit)
        except TimeoutError:
            log.warning("the HTTP server did not close within %.1f s", limit)
        await asyncio.to_thread(_remove_own, self.unix_socket, self._inode)


async def start_servers(
    app: web.Application,
    *,
    host: str | None,
    port: int,
    unix_socket: Path,
    shutdown_seconds: float = 1.0,
    silent_seconds: float = _SILENT_SECONDS,
) -> RunningServers:
    """Listen on ``host:port`` (``host`` None: not at all) and on ``unix_socket`` (0600).

    ``shutdown_seconds``: what a request under way gets at the end before it is cancelled.  ``silent_seconds``: what a
    client has to send the head of its first or next request; strangers must not be able to hold connections for long.
    Raises ConflictError when another service answers at either; ConfigError for an address or a path that cannot be
    listened on.
    """
    if host is not None and not _is_loopback(host):
        log.warning("listening on %s: other machines can reach the API, in clear text; put TLS in front", host)
    runner = Runner(
        app, handle_signals=False, access_log=None, shutdown_timeout=shutdown_seconds, keepalive_timeout=silent_seconds
    )
    await runner.setup()
    try:
        if host is not None:
            await _start_tcp(runner, host, port)
        inode = await _start_unix(runner, unix_socket)
    except BaseException:
        await runner.cleanup()
        raise
    bound = next((address[1] for address in runner.addresses if isinstance(address, tuple)), None)
    if bound is not None:
        log.info("API on http://%s:%d", host, bound)
    log.info("API on %s", unix_socket)
    return RunningServers(
        port=bound, unix_socket=unix_socket, _runner=runner, _inode=inode, _shutdown_seconds=shutdown_seconds
    )


async def _start_tcp(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConflictError(
            f"cannot listen on {host} port {port} ({os.strerror(error.errno or 0)}): set server.host and server.port,"
            " or stop what uses it"
        ) from error


async def _start_unix(runner: web.AppRunner, path: Path) -> tuple[int, int]:
    listener, inode = await asyncio.to_thread(_bind, path)
    try:
        await web.SockSite(runner, listener).start()
    except BaseException:
        listener.close()
        await asyncio.to_thread(_remove_own, path, inode)
        raise
    return inode


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    """A listening Unix socket, and the inode that is ours.  Blocking."""
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise ConfigError(f"{path} is too long for a Unix socket ({_PATH_BYTES} bytes): set storage.runtime_dir")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # on Linux the file gets the mode of the socket: no moment in which others could connect
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(os.fspath(path))
            listener.listen(128)
            listener.setblocking(False)  # noqa: FBT003 - its only argument
            status = path.lstat()
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return listener, (status.st_dev, status.st_ino)


def _clear_stale(path: Path) -> None:
    """Remove the socket that a dead service left.  Raises ConflictError when a live one answers there."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{path} is in the way and is not a socket: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            log.debug("%s does not take connections, but somebody holds it", path, exc_info=True)
    raise ConflictError(f"another podmentor answers at {path}")


def _remove_own(path: Path, inode: tuple[int, int]) -> None:
    """Remove our socket, but not one that a following service has put in its place."""
    try:
        status = path.lstat()
        if (status.st_dev, status.st_ino) == inode:
            path.unlink()
    except FileNotFoundError:
        return


class Runner(web.AppRunner):
    """An AppRunner whose server answers every error as a problem."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        handle = made.request_handler

        async def guarded(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handle(request)
            except web.HTTPException as error:  # raised before the first middleware
                return problem_answer(request, error)

        return _Server(guarded, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed, and close the connection; raises ConnectionError behind a begun answer."""
        if status != 400 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong):
            what = f"the request line or a header is too long: at most {self.max_line_size} bytes are taken"
        else:
            what = "the request is not well-formed HTTP/1.1"
        log.debug("request %s cannot be parsed", request_id_of(request), exc_info=exc)
        response = problem_answer(request, InvalidRequestError(what))
        set_headers(request, response)  # signals are sent for routed requests only
        response.force_close()
        access_log.info("- - %d 0 ms %s", response.status, request_id_of(request))
        return response
