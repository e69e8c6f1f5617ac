"""From a host's name to its addresses, outside the container."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from pathlib import Path
from typing import Final, Protocol

from orchestrator.config.hosts import Address, normalise_host

MAX_ADDRESSES: Final = 16
"""Of one name; nobody tries more."""
THREADS: Final = 32
MAX_FILE: Final = 1024 * 1024


class UnknownNameError(Exception):
    """There is no such name, or it has no address."""


class Resolver(Protocol):
    """Looks up names."""

    async def resolve(self, host: str) -> list[Address]:
        """The addresses of a normalised host name, the preferred one first.  Raises: UnknownNameError, OSError."""
        ...


class SystemResolver:
    """The system's resolver, on threads of its own: names that take long hold up neither other work nor our end."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(THREADS)

    async def resolve(self, host: str) -> list[Address]:
        """The addresses that ``getaddrinfo`` gives, at most ``MAX_ADDRESSES``."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Address]] = loop.create_future()

        def settle(addresses: list[Address] | None, error: Exception | None) -> None:
            self._threads.release()
            if answer.done():
                return  # the caller has given up
            if addresses is None:
                answer.set_exception(error or UnknownNameError())
            else:
                answer.set_result(addresses)

        def look_up() -> None:
            try:
                found, error = _look_up(host), None
            except (UnknownNameError, OSError) as failure:
                found, error = None, failure
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(settle, found, error)

        await self._threads.acquire()
        threading.Thread(target=look_up, name="resolver", daemon=True).start()
        return await answer


def _look_up(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise UnknownNameError from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    return list(dict.fromkeys(addresses))[:MAX_ADDRESSES]


class FileResolver:
    """A file with lines as in /etc/hosts, read anew for every name, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def resolve(self, host: str) -> list[Address]:
        """All addresses of the lines that have the name, in their order."""
        addresses = hosts_in(await asyncio.to_thread(self._read), host)
        if not addresses:
            raise UnknownNameError
        return addresses

    def _read(self) -> str:
        with self._path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE)


def hosts_in(text: str, host: str) -> list[Address]:
    """The addresses that ``text`` has for a normalised name.  Lines that cannot be read count as comments.  Pure."""
    addresses: list[Address] = []
    for line in text.splitlines():
        number, *names = line.partition("#")[0].split() or [""]
        if any(_is(name, host) for name in names):
            try:
                addresses.append(ipaddress.ip_address(number))
            except ValueError:
                continue
    return list(dict.fromkeys(addresses))[:MAX_ADDRESSES]


def _is(name: str, host: str) -> bool:
    try:
        return normalise_host(name) == host
    except ValueError:
        return False
