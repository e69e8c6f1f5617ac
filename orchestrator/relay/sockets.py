"""Unix sockets of the relay: they appear whole or not at all, are the owner's alone, and go when their holder does."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from orchestrator.relay.control.protocol import SOCKET_PATH_MAX


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
    if len(bytes(path)) > SOCKET_PATH_MAX:
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


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end, as the kernel knows it."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end is the same user's."""
    return peer_of(sock)[1] == os.geteuid()
