import os
import socket
import stat
from pathlib import Path

import pytest

from orchestrator.relay.sockets import listen
from orchestrator.system.peers import peer_of, same_user


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


def test_a_socket_is_the_owners_alone_and_leaves_nothing_else_behind(directory: Path) -> None:
    listener = listen(directory / "gateway.sock")
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
    assert [path.name for path in directory.iterdir()] == ["gateway.sock"]
    with listener.sock, connect(listener.path) as client:
        assert peer_of(client) == (os.getpid(), os.geteuid())
        assert same_user(client)
    listener.remove()
    assert list(directory.iterdir()) == []


def test_a_stale_one_is_replaced_and_the_replaced_one_does_not_remove_its_successor(directory: Path) -> None:
    old = listen(directory / "gateway.sock")
    new = listen(directory / "gateway.sock")
    assert not old.in_place()
    assert new.in_place()
    old.remove()
    with old.sock, new.sock, connect(new.path):
        assert new.path.exists()


def test_what_cannot_be_made_leaves_nothing_behind(directory: Path) -> None:
    with pytest.raises(OSError, match="longer than 107 bytes"):
        listen(directory / ("x" * 120))
    with pytest.raises(OSError, match="No such file"):
        listen(directory / "missing" / "gateway.sock")
    (directory / "gateway.sock").mkdir()
    with pytest.raises(IsADirectoryError):
        listen(directory / "gateway.sock")
    assert [path.name for path in directory.iterdir()] == ["gateway.sock"]
