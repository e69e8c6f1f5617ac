import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.system import processes
from orchestrator.system.processes import HeldProcess

STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"
)


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
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", STUBBORN, stdin=pipe, stdout=pipe)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    held = HeldProcess.of_child(child.pid)
    assert held is not None
    with held:
        assert await processes.end(held)
    assert await child.wait() == -signal.SIGKILL


async def test_run_gives_code_and_last_words() -> None:
    assert await processes.run(["sh", "-c", "echo sorry >&2; exit 3"], timeout=10) == (3, "sorry")


async def test_run_kills_and_reaps_what_takes_too_long(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        await processes.run(["sh", "-c", f"echo $$ > {note}; exec sleep 60"], timeout=0.5)
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


async def test_run_kills_when_the_caller_is_cancelled(tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    running = asyncio.ensure_future(processes.run(["sh", "-c", f"echo $$ > {fifo}; exec sleep 60"], timeout=60))
    pid = (await asyncio.to_thread(fifo.read_text)).strip()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{pid}").exists()


async def test_a_missing_command_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        await processes.run(["/nonexistent/podman"], timeout=1)
