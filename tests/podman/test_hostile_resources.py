"""A hostile agent that takes what it can get: each excess ends typed, the stream up to it is whole, nothing is left."""

from __future__ import annotations

import secrets
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, eventually, live_service, podman, processes_with

pytestmark = [pytest.mark.podman, pytest.mark.asyncio(loop_scope="module")]

MIB = 1024**2
DISK = 200 * MIB
MEMORY = 700 * MIB
"""The CLI itself takes some 200 MiB; the container's /tmp has half of the limit."""


class Attack:
    """Runs a Python script by the agent's shell; whatever it starts has ``mark`` on its command line."""

    def __init__(self, service: LiveService) -> None:
        self.service = service
        self.mark = f"mark{secrets.token_hex(8)}"

    async def submit(self, body: str, *, limits: dict[str, Any], **more: Any) -> str:
        script = f"import os, sys, time, subprocess, ctypes, mmap, socket\n{textwrap.dedent(body)}"
        prompt = f"scenario: dump\nRUN:\npython3 - {self.mark} <<'PY_END'\n{script}\nPY_END\n"
        run = await self.service.submit(prompt, limits={"wall_clock_seconds": 90, **limits}, **more)
        return str(run["run_id"])

    async def end(self, run_id: str) -> dict[str, Any]:
        """The finished run; its stream is whole and nothing of it is left."""
        record = await self.service.finished(run_id)
        events = await self.service.all_events(run_id)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        terminal = [event["kind"] for event in events if event["kind"] in {"completed", "error"}]
        assert len(terminal) == 1
        assert events[-1]["kind"] == terminal[0]
        warned = [event["data"]["limit"] for event in events if event["data"].get("phase") == "limit_warning"]
        assert len(warned) == len(set(warned)), "one warning for each limit"
        assert processes_with(self.mark) == []
        assert await podman("ps", "--all", "--quiet", f"--filter=label=podmentor.run_id={run_id}") == ""
        assert record["subagent_id"] not in await podman("unshare", "cat", "/proc/self/mountinfo")
        assert not (self.service.runtime / run_id).exists()
        return record

    async def run(self, body: str, *, limits: dict[str, Any], **more: Any) -> dict[str, Any]:
        return await self.end(await self.submit(body, limits=limits, **more))


def excess(record: dict[str, Any], reason: str, limit: str) -> dict[str, Any]:
    """The details of an error for this excess, which name limit and use."""
    error = record["error"]
    assert error is not None, record["final_text"]
    assert error["reason"] == reason, error
    details = error["details"]
    assert details["limit"] == limit
    unit = "bytes" if limit.endswith("bytes") else "seconds"
    assert details[f"limit_{unit}"] == record["limits"][limit]
    assert details[f"used_{unit}"] >= details[f"limit_{unit}"]
    assert isinstance(details, dict)
    return details


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveService]:
    """One service for all: what one attack leaves behind would disturb the next."""
    async with (
        ScriptedProvider(api_key=REAL_KEY) as provider,
        live_service(tmp_path_factory.mktemp("service"), provider.base_url) as service,
    ):
        yield service


@pytest.fixture
def attack(shared: LiveService) -> Attack:
    return Attack(shared)


# --- memory ----------------------------------------------------------------------------------------------------------

MEMORY_BOMBS = {
    "one process": "held = bytearray(1 << 30)\nfor at in range(0, len(held), 4096): held[at] = 1\ntime.sleep(600)",
    "many small ones": """
        for _ in range(60):
            if os.fork() == 0:
                held = os.urandom(16 << 20)
                time.sleep(600)
        time.sleep(600)
    """,
    "files in tmp": """
        for place in ("/tmp", "/dev/shm"):
            try:
                with open(place + "/f", "wb") as file:
                    while True: file.write(bytes(1 << 20))
            except OSError: pass
        held = os.urandom(250 << 20)
        time.sleep(600)
    """,
    "nameless files": """
        for _ in range(20):
            fd = os.memfd_create("x")
            for _ in range(50): os.write(fd, bytes(1 << 20))
        time.sleep(600)
    """,
    "nameless files, hidden": """
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        for _ in range(20):
            fd = os.memfd_create("x")
            for _ in range(50): os.write(fd, bytes(1 << 20))
        time.sleep(600)
    """,
    "shared memory": "held = mmap.mmap(-1, 1 << 30)\nheld.write(bytes(1 << 30))\ntime.sleep(600)",
}


@pytest.mark.parametrize("bomb", MEMORY_BOMBS)
async def test_a_memory_bomb_ends_with_its_own_error(attack: Attack, bomb: str) -> None:
    record = await attack.run(MEMORY_BOMBS[bomb], limits={"memory_max_bytes": MEMORY})
    excess(record, "memory_exceeded", "memory_max_bytes")
    assert record["usage"]["peak_memory_bytes"] > MEMORY


async def test_memory_that_was_let_go_of_cannot_be_hidden(attack: Attack) -> None:
    """System V segments without a process are gone; other tmpfs mounts than the bounded ones cannot be written."""
    record = await attack.run(
        """
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        for _ in range(20):
            number = libc.shmget(0, 50 << 20, 0o1600)
            at = libc.shmat(number, None, 0)
            ctypes.memset(at, 1, 50 << 20)
            libc.shmdt(ctypes.c_void_p(at))
        print("segments", len(open("/proc/sysvipc/shm").read().splitlines()) - 1)
        writable = [line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "tmpfs"
                    and os.access(line.split()[1], os.W_OK)]
        print("tmpfs", sorted(writable))
        """,
        limits={"memory_max_bytes": MEMORY},
    )
    assert record["outcome"] == "completed", record["error"]
    assert "segments 0" in record["final_text"]
    assert "tmpfs ['/dev/shm', '/tmp']" in record["final_text"]


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_a_fork_bomb_fails_inside_and_leaves_the_machine_usable(attack: Attack) -> None:
    record = await attack.run(
        """
        import signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0: os.setsid()
            except OSError:
                time.sleep(0.05)
        """,
        limits={"wall_clock_seconds": 15, "pids_max": 80},
    )
    excess(record, "timeout", "wall_clock_seconds")
    assert 40 < record["usage"]["peak_pids"] <= 80
    assert record["enforcement"]["pids_max"] in {"cgroup", "rlimit"}


async def test_children_that_cut_themselves_loose_and_ignore_signals_end_with_the_run(attack: Attack) -> None:
    record = await attack.run(
        """
        import signal
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 10)
                    while True: time.sleep(1)
                os._exit(0)
        print("loose")
        """,
        limits={},
    )
    assert record["outcome"] == "completed", record["error"]
    assert "loose" in record["final_text"]


async def test_an_agent_that_ignores_every_signal_ends_at_its_time(attack: Attack) -> None:
    record = await attack.run(
        """
        import signal
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: time.sleep(1)
        """,
        limits={"wall_clock_seconds": 10},
    )
    excess(record, "timeout", "wall_clock_seconds")


# --- disk ------------------------------------------------------------------------------------------------------------

DISK_BOMBS = {
    "workspace": """
        with open("/workspace/f", "wb") as file:
            while True: file.write(bytes(1 << 20))
    """,
    "home": """
        for number in range(100000):
            with open(f"/home/agent/{number}", "wb") as file: file.write(bytes(1 << 20))
    """,
    "deleted and open": """
        file = open("/workspace/f", "wb")
        os.unlink("/workspace/f")
        for _ in range(2000):
            file.write(bytes(1 << 20)); file.flush()
        time.sleep(600)
    """,
    "deleted, open and hidden": """
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        file = open("/home/agent/f", "wb")
        os.unlink("/home/agent/f")
        for _ in range(2000):
            file.write(bytes(1 << 20)); file.flush()
        time.sleep(600)
    """,
    "behind a closed directory": """
        os.mkdir("/workspace/d")
        file = open("/workspace/d/f", "wb")
        os.chmod("/workspace/d", 0)
        for _ in range(2000):
            file.write(bytes(1 << 20)); file.flush()
        time.sleep(600)
    """,
    "tiny files": """
        for top in range(10000):
            os.mkdir(f"/workspace/{top}")
            for number in range(1000): open(f"/workspace/{top}/{number}", "w").close()
    """,
    "reserved": """
        for number in range(8):
            with open(f"/workspace/{number}", "wb") as file: os.posix_fallocate(file.fileno(), 0, 100 << 20)
        time.sleep(600)
    """,
}


@pytest.mark.parametrize("bomb", DISK_BOMBS)
async def test_a_disk_bomb_ends_with_its_own_error(attack: Attack, bomb: str) -> None:
    limit = DISK if bomb != "tiny files" else 50 * MIB  # 12,800 of them
    record = await attack.run(DISK_BOMBS[bomb], limits={"disk_max_bytes": limit})
    excess(record, "disk_exceeded", "disk_max_bytes")
    assert record["usage"]["peak_disk_bytes"] > limit
    assert record["enforcement"]["disk_max_bytes"] == "watch"


async def test_what_takes_no_room_is_no_excess(attack: Attack, repo: Path) -> None:
    """Sparse files, names of one file, links out, a tree deeper than any path, odd names, closed directories."""
    record = await attack.run(
        """
        with open("/workspace/sparse", "wb") as file: file.truncate(50 << 30)
        open("/workspace/one", "wb").write(os.urandom(30 << 20))
        for number in range(40): os.link("/workspace/one", f"/workspace/name{number}")
        os.symlink("/", "/home/agent/out")
        open(b"/workspace/\\xff\\xfe\\n odd", "wb").close()
        os.mkdir("/workspace/closed", 0)
        os.chdir("/workspace")
        for _ in range(3000):
            os.mkdir("d" * 20)
            os.chdir("d" * 20)
        print("all made")
        """,
        limits={"disk_max_bytes": DISK},
        repo=str(repo),
    )
    assert record["outcome"] == "completed", record["error"]
    assert "all made" in record["final_text"]
    assert 30 * MIB < record["usage"]["peak_disk_bytes"] < 80 * MIB


async def test_a_conversation_over_its_limit_starts_nothing_until_it_is_freed(attack: Attack, repo: Path) -> None:
    service = attack.service
    first = await attack.run(DISK_BOMBS["workspace"], limits={"disk_max_bytes": DISK}, repo=str(repo))
    excess(first, "disk_exceeded", "disk_max_bytes")
    again = await attack.run("print('hi')", limits={"disk_max_bytes": DISK}, subagent_id=first["subagent_id"])
    excess(again, "disk_exceeded", "disk_max_bytes")
    assert again["sandbox_id"] is None
    assert "discard" in again["error"]["message"]
    await service.call("POST", f"/v1/subagents/{first['subagent_id']}/discard", json={})
    freed = await attack.run("print('hi')", limits={"disk_max_bytes": DISK}, subagent_id=first["subagent_id"])
    assert freed["outcome"] == "completed", freed["error"]


async def test_the_disk_is_watched_over_a_restart_of_the_service(attack: Attack, repo: Path) -> None:
    """In a repo that is worked on directly, where only what the run adds counts, before the restart too."""
    service = attack.service
    (repo / "large").write_bytes(bytes(150 * MIB))
    body = """
        open("/workspace/before", "wb").write(bytes(120 << 20))
        open("/workspace/ready", "w").close()
        while not os.path.exists("/workspace/go"): time.sleep(0.1)
        open("/workspace/after", "wb").write(bytes(120 << 20))
        time.sleep(600)
    """
    run_id = await attack.submit(body, limits={"disk_max_bytes": DISK}, repo=str(repo), workspace="direct")
    await eventually((repo / "ready").exists)
    await service.kill()
    await service.start()
    (repo / "go").touch()
    record = await attack.end(run_id)
    details = excess(record, "disk_exceeded", "disk_max_bytes")
    assert details["used_bytes"] < 300 * MIB, "what was there before does not count"


# --- output ----------------------------------------------------------------------------------------------------------


async def test_an_output_flood_ends_with_its_own_error(attack: Attack) -> None:
    record = await attack.run(
        f"subprocess.run(['sh', '-c', 'exec yes {attack.mark} > /proc/1/fd/1'])",
        limits={"output_max_bytes": MIB // 2},
    )
    excess(record, "output_exceeded", "output_max_bytes")
    log = attack.service.state / "runs" / record["run_id"] / "ctr.log"
    assert log.stat().st_size < 1 << 30, "what the machine writes within the second or so that it may take"


async def test_an_admin_may_widen(attack: Attack) -> None:
    """C23 in the running service: the local owner is an admin."""
    record = await attack.run("print('hi')", limits={"disk_max_bytes": 5 << 30})
    assert record["limits"]["disk_max_bytes"] == 5 << 30
