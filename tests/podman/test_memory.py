"""The memory watchdog on a real rootless container."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from orchestrator.runs.limits.memory_watchdog import MemoryMeter, ProcessTable, watch_memory
from tests.podman import session

pytestmark = pytest.mark.podman

IMAGE = "localhost/podmentor/claude-code:current"
MIB = 1024 * 1024
HOG = "(head -c 200M /dev/zero; sleep 600) | tail -c 200M"
"""``tail`` keeps what it reads until the end comes, which it does not."""


async def podman(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec("podman", *arguments, stdout=asyncio.subprocess.PIPE, cwd="/")
    output, _ = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0
    return output.decode().strip()


@pytest.fixture
async def init_pid() -> AsyncIterator[int]:
    """A container whose hog has cut itself loose: forked twice, in a session of its own."""
    name = f"podmentor-test-{secrets.token_hex(4)}"
    await podman(
        "run",
        "--detach",
        f"--name={name}",
        f"--label={session.LABEL}={session.SESSION}",
        "--init",
        "--pull=never",
        "--network=none",
        "--userns=keep-id:uid=1000,gid=1000",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--entrypoint=",
        IMAGE,
        "sh",
        "-c",
        f"(setsid sh -c '{HOG}' &) ; sleep 600",
    )
    try:
        yield int(await podman("inspect", "--format={{.State.Pid}}", name))
    finally:
        await podman("rm", "--force", "--time=0", name)


async def test_a_hog_that_has_cut_itself_loose_is_caught(init_pid: int) -> None:
    table = ProcessTable()
    caught: list[int] = []

    async def note(used: int) -> None:
        caught.append(used)

    try:
        with await MemoryMeter.of(init_pid, table) as meter:
            await asyncio.wait_for(watch_memory(meter, limit_bytes=150 * MIB, on_excess=note), 60)
            assert len(caught) == 1
            assert caught[0] > 150 * MIB
            assert meter.peak_bytes == caught[0]
    finally:
        await table.aclose()
