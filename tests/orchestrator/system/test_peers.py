"""Who is at the other end of a Unix socket."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.system.peers import peer_of, same_user
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes

CLIENT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"


def test_the_other_process_is_known_by_pid_and_uid(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(30)
        with subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path / "s")], stdin=subprocess.PIPE) as client:
            connection, _ = listener.accept()
            with connection:
                assert peer_of(connection) == (client.pid, os.geteuid())
                assert same_user(connection)
            client.kill()


def test_a_path_that_is_as_long_as_it_may_be_can_be_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("s" * SOCKET_PATH_MAX)
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
        listener.bind("s" * (SOCKET_PATH_MAX + 2))
    assert socket_path_bytes(Path("/ä")) == 3
