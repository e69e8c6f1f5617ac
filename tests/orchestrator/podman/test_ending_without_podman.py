"""Ending a container when Podman is of no help: the first process is found, held and killed by the kernel alone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.contract.sandbox import SandboxExit, StartedSandbox
from orchestrator.errors import SandboxError
from orchestrator.podman import exits as exits_module
from orchestrator.podman import runtime as runtime_module
from orchestrator.podman.exits import Inits, is_init
from orchestrator.podman.runtime import PodmanRuntime
from orchestrator.system.processes import cmdline
from tests.fakes.conmon import FakeConmon
from tests.fakes.libpod import Answer, FakeLibpod

CID = "cd" * 32
START = ("POST", f"/containers/{CID}/start")
INSPECT = ("GET", f"/containers/{CID}/json")
KILL = ("POST", f"/containers/{CID}/kill")
DELETE = ("DELETE", f"/containers/{CID}")
DEAF = (
    "import signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)];"
    "print('ready', flush=True); sys.stdin.read()"
)


class First:
    """A process that counts as the container's first one: the id is in its command line (see ``marked``)."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", DEAF, f"init-{CID}"], stdin=pipe, stdout=pipe)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    async def code(self) -> int:
        return await asyncio.to_thread(self.process.wait, 10)


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without containers a command line has to do."""
    monkeypatch.setattr(exits_module, "is_init", lambda pid, container_id: f"init-{container_id}" in cmdline(pid))


@pytest.fixture
async def first() -> AsyncIterator[First]:
    made = First()
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def hangs(libpod: FakeLibpod) -> threading.Event:
    """From now on Podman answers nothing but what is scripted; set it at the end."""
    event = threading.Event()
    for way in (START, INSPECT, KILL, DELETE):
        libpod.script(*way, Answer(500, wait=event))
    return event


def state(**more: object) -> Answer:
    return Answer(200, {"Id": CID, "State": {"Status": "running", "OOMKilled": False, "ExitCode": 0, **more}})


def test_a_first_process_is_number_one_of_its_namespace_and_has_the_containers_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits_module, "PROC", tmp_path)
    monkeypatch.setattr(exits_module, "mounts_mention", lambda pid, text: text == CID)
    for pid, numbers in {10: "10\t1", 11: "11\t7", 12: "12", 13: "13\t2\t1"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\nThreads:\t1\n")
    assert [pid for pid in (10, 11, 12, 13, 14) if is_init(pid, CID)] == [10, 13]
    assert not is_init(10, "ef" * 32)


async def test_a_process_that_another_took_the_number_of_is_not_touched(first: First) -> None:
    inits = Inits()
    inits.hold(CID, os.getpid())  # a wrong number: not recognised, and the right one is found
    assert await inits.send(CID, signal.SIGKILL)
    assert await first.code() == -signal.SIGKILL
    assert await inits.kill(CID)
    inits.aclose()


async def test_nobody_is_there(first: First) -> None:
    inits = Inits()
    assert not await inits.send("ef" * 32, signal.SIGKILL)
    assert await inits.kill("ef" * 32)
    assert first.process.poll() is None


async def test_a_kill_needs_no_podman(runtime: PodmanRuntime, hangs: threading.Event, first: First) -> None:
    await runtime.signal(CID, "INT")
    await runtime.signal(CID, "KILL")
    assert await first.code() == -signal.SIGKILL
    await runtime.signal(CID, "KILL")  # it has ended: nothing happens
    hangs.set()


async def test_signals_of_one_that_was_started_here_ask_nobody(
    libpod: FakeLibpod, runtime: PodmanRuntime, first: First
) -> None:
    libpod.script(*START, Answer(204))
    libpod.script(*INSPECT, state(Pid=first.process.pid))
    await runtime.start_sandbox(CID)
    await runtime.signal(CID, "KILL")
    assert await first.code() == -signal.SIGKILL
    assert libpod.seen(*KILL) == []


async def test_a_signal_waits_for_podman_only_so_long(
    runtime: PodmanRuntime, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.podman.containers.SIGNAL_SECONDS", 0.1)
    await runtime.signal(CID, "KILL")  # no process is found, and Podman does not answer
    hangs.set()


async def test_what_podman_cannot_remove_is_dead_all_the_same(
    libpod: FakeLibpod, runtime: PodmanRuntime, first: First
) -> None:
    libpod.script(*INSPECT, state(Pid=first.process.pid))
    libpod.script(*DELETE, Answer.error(500, "device or resource busy"))
    with pytest.raises(SandboxError, match="busy"):
        await runtime.remove(CID)
    assert await first.code() == -signal.SIGKILL


async def test_what_starts_although_it_was_cancelled_is_killed_at_once(
    libpod: FakeLibpod, runtime: PodmanRuntime, hangs: threading.Event
) -> None:
    """Podman has started it and does not come back to say so."""
    starting = asyncio.ensure_future(runtime.start_sandbox(CID))
    await asyncio.to_thread(libpod.wait_for, *START)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    late = First()
    assert await late.code() == -signal.SIGKILL
    late.process.communicate()
    libpod.script(*INSPECT, state(Pid=0))
    libpod.script(*DELETE, Answer(200, []))
    hangs.set()
    await asyncio.to_thread(libpod.wait_for, *DELETE)  # a start that has failed leaves its container to us


async def test_removing_a_run_waits_for_what_a_cancelled_create_makes(
    libpod: FakeLibpod, runtime: PodmanRuntime
) -> None:
    answered = threading.Event()
    libpod.script(*START, Answer(204, wait=answered))
    libpod.script(*INSPECT, state(Pid=0))
    libpod.script(*DELETE, Answer(200, []))
    libpod.script("GET", "/containers/json", Answer(200, []))
    runtime._runs[CID] = "run-1"
    starting = asyncio.ensure_future(runtime.start_sandbox(CID))
    await asyncio.to_thread(libpod.wait_for, *START)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    removing = asyncio.ensure_future(runtime.remove_run("run-1", sandbox_id=None))
    await asyncio.wait({removing}, timeout=0.1)
    assert not removing.done()
    answered.set()
    await removing
    assert len(libpod.seen(*DELETE)) == 1


async def test_a_container_that_lost_its_conmon_is_killed_before_podman_is_asked(
    runtime: PodmanRuntime, hangs: threading.Event, first: First, tmp_path: Path
) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        sandbox = StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=first.process.pid)
        waiting = asyncio.ensure_future(runtime.wait(sandbox))
        await asyncio.sleep(0)
        conmon.kill()
        assert await first.code() == -signal.SIGKILL
        hangs.set()
        assert await waiting == SandboxExit(exit_code=None)


async def test_why_it_was_killed_is_not_waited_for_forever(
    runtime: PodmanRuntime, hangs: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "REASON_SECONDS", 0.1)
    with FakeConmon(CID, tmp_path) as conmon:
        conmon.write_exit_file("137")
        found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=0))
    assert found == SandboxExit(exit_code=137)
    hangs.set()
