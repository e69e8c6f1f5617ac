"""A disk that is really full, under a real container.

``PODMENTOR_SMALL_DISK`` names a small file system that these tests may fill: ``scripts/test`` has one mounted
(``scripts/small_disk``), outside and in Podman's mount namespace, from where conmon writes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.sandbox import LABEL_RUN
from orchestrator.scripted import ScriptedProvider
from tests.podman.live import LiveService, assert_nothing_left, live_service
from tests.podman.test_durability import FAKE_CLI, RESULT

PLACE = os.environ.get("PODMENTOR_SMALL_DISK", "")
pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(
        not PLACE, reason=os.environ.get("PODMENTOR_NO_SMALL_DISK", "no small disk: scripts/test mounts one")
    ),
]
MIB = 1024**2
TALK = """
import time
for i in range(3000):
    line(type="assistant", message={"id": f"m{i}", "content": [{"type": "text", "text": f"{i} " + "x" * 500}]}); out.flush()
    time.sleep(0.003)
"""


def free() -> int:
    found = os.statvfs(PLACE)
    return found.f_bavail * found.f_frsize


@contextmanager
def filled(*, but: int = 0) -> Iterator[None]:
    """The disk is full but for so many bytes."""
    path = Path(PLACE) / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 512, 1):
            try:
                while free() - but >= size:
                    file.write(b"x" * size)
            except OSError:
                continue
    try:
        yield
    finally:
        path.unlink()


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(scenario="gate") as provider:
        yield provider


@pytest.fixture
def root() -> Iterator[Path]:
    root = Path(PLACE) / "root"
    root.mkdir()
    yield root
    root.rename(root.with_name(f"done-{os.getpid()}-{os.urandom(4).hex()}"))  # overlays belong to subordinate ids


def talking(repo: Path, body: str) -> None:
    cli = repo / "cli"
    cli.write_text(FAKE_CLI.replace("BODY", f"{body}\n{RESULT}"))
    cli.chmod(0o755)


def texts(events: list[dict[str, Any]]) -> list[int]:
    return [int(event["data"]["text"].split()[0]) for event in events if event["kind"] == "message_delta"]


async def test_a_run_ends_before_its_output_is_lost(root: Path, repo: Path, provider: ScriptedProvider) -> None:
    talking(repo, TALK)
    storage = {"keep_free_bytes": 64 * MIB}
    async with live_service(root, provider.base_url, backend={"binary": "/workspace/cli"}, storage=storage) as service:
        run = await service.submit("x", repo=str(repo))
        await service.until(run["run_id"], "message_delta")
        with filled(but=12 * MIB):
            record = await service.finished(run["run_id"])
            assert record["error"]["reason"] == "disk_exceeded"
            with pytest.raises(AssertionError, match=r"507 .*storage_failed"):
                await service.submit("y", repo=str(repo))
        seen = texts(await service.all_events(run["run_id"]))
        assert seen == list(range(len(seen)))
        log = (service.state / "runs" / run["run_id"] / "ctr.log").read_bytes()
        assert log.count(b'"type": "assistant"') == len(seen), "all that is in the log is in the journal, once"
        await assert_nothing_left(service, run["run_id"])
        talking(repo, TALK.replace("3000", "3"))
        again = await service.submit("x", repo=str(repo), subagent_id=run["subagent_id"])
        assert (await service.finished(again["run_id"]))["outcome"] == "completed"


async def test_without_the_guard_what_is_written_is_kept_and_the_end_comes(
    root: Path, repo: Path, provider: ScriptedProvider
) -> None:
    talking(repo, TALK)
    async with live_service(
        root, provider.base_url, backend={"binary": "/workspace/cli"}, storage={"keep_free_bytes": 0}
    ) as service:
        run = await service.submit("x", repo=str(repo))
        await service.until(run["run_id"], "message_delta")
        with filled():
            await asyncio.sleep(3)  # the CLI talks on
            assert (await service.call("GET", f"/v1/runs/{run['run_id']}"))["state"] == "running"
        record = await service.finished(run["run_id"])
        events = await service.all_events(run["run_id"])
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert len(set(texts(events))) == len(texts(events)), "nothing twice"
        assert texts(events) == sorted(texts(events))
        assert record["outcome"] in {"completed", "failed"}
        await assert_nothing_left(service, run["run_id"])


async def test_cancel_and_restart_with_a_full_disk(root: Path, provider: ScriptedProvider) -> None:
    async with live_service(root, provider.base_url, storage={"keep_free_bytes": 0}) as service:
        run = await service.submit("Go.")
        await provider.reached("gate", timeout=60)
        with filled():
            await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
            async with asyncio.timeout(30):
                while await containers(run["run_id"]):  # noqa: ASYNC110 -- Podman has no event for it
                    await asyncio.sleep(0.1)
        assert (await service.finished(run["run_id"]))["outcome"] == "cancelled"
        await assert_nothing_left(service, run["run_id"])
        await service.terminate()
        with filled():
            said = await refused(service)
        assert "is full" in said
        await service.start()
        assert (await service.call("GET", f"/v1/runs/{run['run_id']}"))["outcome"] == "cancelled"


async def containers(run_id: str) -> list[Any]:
    process = await asyncio.create_subprocess_exec(
        "podman",
        "ps",
        "-a",
        "--format",
        "json",
        "--filter",
        f"label={LABEL_RUN}={run_id}",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return list(json.loads(out or b"[]"))


async def refused(service: LiveService) -> str:
    """What the command says that cannot start; its output is not on the full disk."""
    process = await asyncio.create_subprocess_exec(
        "python",
        "-m",
        "orchestrator",
        "--config",
        str(service.config),
        "serve",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 3, out.decode()
    return out.decode()
