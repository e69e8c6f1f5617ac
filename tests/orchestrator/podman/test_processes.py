import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.podman import processes
from orchestrator.podman.processes import HeldProcess

STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"


def test_a_process_that_is_another_is_not_held() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert HeldProcess.open(child.pid, lambda _: False) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        child.kill()


def test_an_ended_process_is_not_held() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert HeldProcess.open(child.pid, lambda _: True) is None


async def test_the_ladder_ends_what_ignores_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.05)
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        held = HeldProcess.open(child.pid, lambda _: True)
        assert held is not None
        with held:
            assert await processes.end(held)
        assert child.wait() == -signal.SIGKILL


async def test_run_gives_code_and_last_words() -> None:
    assert await processes.run(["sh", "-c", "echo sorry >&2; exit 3"], timeout=10) == (3, "sorry")


async def test_run_kills_and_reaps_what_takes_too_long(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        await processes.run(["sh", "-c", f"echo $$ > {note}; exec sleep 60"], timeout=0.5)
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


async def test_run_kills_when_the_caller_is_cancelled(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    running = asyncio.ensure_future(processes.run(["sh", "-c", f"echo $$ > {note}.x; mv {note}.x {note}; exec sleep 60"], timeout=60))
    deadline = time.monotonic() + 10
    while not note.exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


async def test_a_missing_command_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        await processes.run(["/nonexistent/podman"], timeout=1)
