"""Finds the service: the one that runs, or one inside this process.

A service of this user that answers on its socket is used.  Else this process becomes the service for as long as the
command takes.  When that one ends in the middle (it was another command's), the next in line takes over: containers go
on, and the stream goes on after the last event that was received.

Ids of runs and subagents may be given by their beginning, as long as only one begins so.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from orchestrator.cli.client.api import ApiClient
from orchestrator.cli.context import CliContext
from orchestrator.errors import ConflictError, InvalidRequestError, NotFoundError, ServiceGoneError, UnauthorizedError
from orchestrator.system.tasks import TaskOwner

if TYPE_CHECKING:
    from orchestrator.bootstrap.service import ServiceHandle

T = TypeVar("T")
log = logging.getLogger(__name__)
WAIT_FOR_WINNER = 30.0
"""Seconds to wait for the socket of whoever holds the state directory's lock."""
_START_ONE = "podmentor serve starts one that goes on"
_REMOTE_PATIENCE = 60.0
_POLL = 0.1
_STOP_SECONDS = 20.0
"""How long the end of a service in this process may take before it is cut short."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SHOWN = 4
"""As many ids are named when several begin alike."""


class ServiceLink:
    """The way to a service; ``client`` is usable inside ``async with``."""

    def __init__(self, context: CliContext, *, join: bool = True, lasting: bool = False) -> None:
        """``join`` False: always a service of our own; ConflictError when there is one already.

        ``lasting``: only one that ends with no command, this one or another; ServiceGoneError when there is none.
        """
        self._join_others = join
        self._lasting = lasting
        self._context = context
        self._client: ApiClient | None = None
        self._owner = TaskOwner("cli.service")
        self._stop = asyncio.Event()
        self._host: asyncio.Task[None] | None = None

    @property
    def client(self) -> ApiClient:
        """The client of the service that was found last."""
        assert self._client is not None, "use it inside `async with`"
        return self._client

    @property
    def embedded(self) -> bool:
        """Whether the service is in this process."""
        return self._host is not None

    @property
    def remote(self) -> bool:
        """Whether the service was named by a URL: it sees another file system."""
        return self._context.url is not None

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Find a service, or become one.  Raises ServiceGoneError, UnauthorizedError, what starting one may raise."""
        log.debug("looking for a service")
        await self._find()

    async def aclose(self) -> None:
        """Disconnect from the service; one in this process is ended.  Safe to call twice."""
        if self._client is not None:
            await self._client.aclose()
        self._stop.set()
        if self._host is not None:
            await self._owner.join(timeout=_STOP_SECONDS)
        await self._owner.aclose(grace=_STOP_SECONDS)  # one that never came up has nothing to finish

    async def renew(self) -> None:
        """Find a service again after the one before has gone.  Raises ServiceGoneError when there is none."""
        await self._find()

    async def call(self, body: Callable[[ApiClient], Awaitable[T]]) -> T:
        """``body`` with the client; once more with a new one when the service went away.  For repeatable calls."""
        try:
            return await body(self.client)
        except ServiceGoneError:
            await self.renew()
            return await body(self.client)

    async def _find(self) -> None:
        if self._context.url is not None:
            await self._use(await self._remote(self._context.url))
            return
        paths = await asyncio.to_thread(lambda: self._context.paths)
        deadline = asyncio.get_running_loop().time() + WAIT_FOR_WINNER
        while True:
            if self._join_others and await self._join(paths.api_socket, paths.token_file):
                return
            try:
                handle = await self._embed()
            except ConflictError as error:
                if not self._join_others:
                    raise
                if asyncio.get_running_loop().time() > deadline:
                    raise ServiceGoneError(
                        f"another podmentor holds {paths.state_dir} but does not answer on {paths.api_socket}"
                    ) from error
                await asyncio.sleep(_POLL)
                continue
            if self._lasting:
                raise ServiceGoneError(f"no service is running: {_START_ONE}")
            await self._use(ApiClient(socket=handle.socket, token=handle.token))
            return

    async def _join(self, socket: Path, token_file: Path) -> bool:
        if not await asyncio.to_thread(socket.is_socket):
            return False
        async with ApiClient(socket=socket, token="") as probe:  # healthz asks for none
            if (health := await probe.health()) is None:
                return False
        if self._lasting and health.get("embedded"):
            raise ServiceGoneError(f"the service is inside another podmentor command and ends with it: {_START_ONE}")
        token = await asyncio.to_thread(_read_token, token_file)
        await self._use(ApiClient(socket=socket, token=token))
        return True

    async def _embed(self) -> "ServiceHandle":
        """The service in a task of its own: begun and ended there, whichever task asks for it."""
        ready: asyncio.Future[ServiceHandle] = asyncio.get_running_loop().create_future()
        host = self._owner.spawn(self._serve(ready), name="embedded service")
        self._host = None
        await ready
        self._host = host
        return ready.result()

    async def _serve(self, ready: "asyncio.Future[ServiceHandle]") -> None:
        from orchestrator.bootstrap.service import running_service

        try:
            async with running_service(self._context.config, self._context.paths, listen_tcp=False) as handle:
                if not ready.cancelled():
                    ready.set_result(handle)
                    await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            elif not ready.cancelled():
                raise

    async def _remote(self, url: str) -> ApiClient:
        check_url(url)
        if not self._context.remote_token:
            raise UnauthorizedError("no token for the service at --url: set PODMENTOR_TOKEN")
        client = ApiClient(url=url, token=self._context.remote_token, patience=_REMOTE_PATIENCE)
        async with ApiClient(url=url, token="") as probe:
            if await probe.health() is None:
                raise ServiceGoneError(f"no podmentor service answers at {url}")
        return client

    async def _use(self, client: ApiClient) -> None:
        if self._client is not None:
            await self._client.aclose()
        self._client = await client.__aenter__()


def check_url(url: str) -> None:
    """Refuse a URL over which the token would travel in the clear.  Raises ServiceGoneError or UnauthorizedError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ServiceGoneError(f"{url} is no URL of a service; it looks like https://host:port")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise UnauthorizedError(f"the token is not sent unencrypted to {parts.hostname}: use https, or an ssh tunnel")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UnauthorizedError(f"the service's token file {path} cannot be read: {error}") from None


def with_service(context: CliContext, body: Callable[[ServiceLink], Awaitable[T]]) -> T:
    """Run ``body`` with a link to the service: what the short commands are made of."""

    async def whole() -> T:
        async with ServiceLink(context) as link:
            return await body(link)

    return asyncio.run(whole())


async def find_run(client: ApiClient, text: str) -> str:
    """The run id that ``text`` is, or is the beginning of.  Raises NotFoundError, InvalidRequestError."""
    _check("run", text)
    page = await client.runs(prefix=text, limit=_SHOWN + 1)
    return _the_one("run", text, [run["run_id"] for run in page["runs"]])


async def find_subagent(client: ApiClient, text: str) -> str:
    """The subagent id that ``text`` is, or is the beginning of.  Raises NotFoundError, InvalidRequestError."""
    _check("subagent", text)
    return _the_one("subagent", text, [one["subagent_id"] for one in await client.subagents(prefix=text)])


def _check(what: str, text: str) -> None:
    if not _PLAIN.match(text):
        raise InvalidRequestError(f"{text!r} is no id of a {what}")


def _the_one(what: str, text: str, found: Sequence[str]) -> str:
    if text in found:
        return text
    if not found:
        raise NotFoundError(f"there is no {what} {text!r}")
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise InvalidRequestError(f"{text!r} is the beginning of several {what}s: {shown}")
    return found[0]
