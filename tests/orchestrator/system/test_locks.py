"""A lock file has one holder, and goes with it."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.system.locks import try_lock

HOLDER = """
import sys
from pathlib import Path
from orchestrator.system.locks import try_lock
assert try_lock(Path(sys.argv[1])) is not None
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = try_lock(path)
    assert first is not None
    assert try_lock(path) is None
    os.close(first)
    second = try_lock(path)
    assert second is not None
    os.close(second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert try_lock(path) is None
        holder.kill()
        holder.wait(30)
    descriptor = try_lock(path)
    assert descriptor is not None
    os.close(descriptor)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_is_removed_before_it_is_locked_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a second one, who makes the file anew, would have the lock too."""
    path, real = tmp_path / "lock", fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    descriptor = try_lock(path)
    assert descriptor is not None
    assert try_lock(path) is None
    os.close(descriptor)
