"""Who is at the other end of a Unix socket, as the kernel knows it (SO_PEERCRED of unix(7))."""

from __future__ import annotations

import os
import socket
import struct


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, or that has begun to listen.  Raises OSError."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end is the same user's.  Raises OSError."""
    return peer_of(sock)[1] == os.geteuid()
