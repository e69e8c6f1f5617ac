"""Unix sockets of the relay: they appear whole or not at all, are the owner's alone, and go when their holder does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and the file that leads to it."""

    sock: socket.socket
    path: Path
    inode: int

    def in_place(self) -> bool:
        """Whether the path still leads to this socket."""
        try:
            return self.path.lstat().st_ino == self.inode
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file, unless another one has taken its place."""
        if self.in_place():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def listen(path: Path, *, backlog: int = 64) -> Listener:
    """Listen at ``path``, mode 0600, in place of whatever was there.

    The socket is made under another name and renamed when it listens, so nobody meets a half-made one.
    Raises: OSError (no such directory, path too long, not permitted).
    """
    if socket_path_bytes(path) > SOCKET_PATH_MAX:
        raise OSError(f"the socket path is longer than {SOCKET_PATH_MAX} bytes: {path}")
    temporary = path.with_name("." + secrets.token_hex(3))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.bind(str(temporary))
        try:
            temporary.chmod(0o600)
            sock.listen(backlog)
            inode = temporary.lstat().st_ino
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except BaseException:
        sock.close()
        raise
    return Listener(sock, path, inode)


class RunSocket:
    """The socket of one run's gateway or proxy.  ``accept`` makes the protocol of each new connection."""

    def __init__(self, accept: Callable[[], asyncio.Protocol], *, backlog: int) -> None:
        self._accept = accept
        self._backlog = backlog
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at ``path``, and no longer at the path before.  Raises: OSError; all is as it was then."""
        listener = await asyncio.to_thread(listen, path, backlog=self._backlog)
        server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listener.sock)
        await self.aclose()
        self._listener, self._server = listener, server

    async def ensure(self, path: Path) -> None:
        """Listen at ``path`` if that does not lead here any more.  Raises: OSError, as ``open`` does."""
        listener = self._listener
        if listener is None or listener.path != path or not await asyncio.to_thread(listener.in_place):
            await self.open(path)

    async def aclose(self) -> None:
        """Stop listening and remove the file; connections that were accepted go on."""
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            await asyncio.to_thread(self._listener.remove)
