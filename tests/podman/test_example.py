"""A backend from outside, all the way: installed, its image built, a run and a probe through the service."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.conftest import installed as installed  # noqa: PLC0414  # fixtures
from tests.examples.conftest import target as target  # noqa: PLC0414
from tests.podman import session
from tests.podman.live import PROJECT, LiveService

pytestmark = [pytest.mark.podman, pytest.mark.timeout(400)]
BACKENDS = {"example": {"api_key": "unused"}}


@pytest.fixture
def known(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every Python that is started finds the package; its image is removed at the end.

    The package is known by one name only: sessions of other checkouts wait for their turn.
    """
    path = os.pathsep.join([str(target), str(PROJECT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    with session.turn("example"):
        yield
        listing = ["podman", "images", "--quiet", "--no-trunc", "--filter=label=podmentor.image=example"]
        ids = subprocess.run(listing, check=True, capture_output=True, text=True, cwd="/").stdout.split()
        if ids:
            subprocess.run(["podman", "rmi", "--force", *set(ids)], check=False, capture_output=True, cwd="/")


async def test_a_backend_from_outside_runs(tmp_path: Path, known: None) -> None:
    service = LiveService(
        tmp_path, "http://127.0.0.1:9", external_agent={"default_sandbox_tier": 1, "backends": BACKENDS}
    )
    build = [sys.executable, "-m", "orchestrator", "--config", str(service.config), "images", "build", "example"]
    done = await asyncio.to_thread(
        subprocess.run, build, check=False, capture_output=True, text=True, cwd=PROJECT, timeout=110
    )
    assert done.returncode == 0, done.stderr
    await service.start()
    try:
        run = await service.submit("How many words are these?", backend="example")
        record = await service.finished(run["run_id"])
        assert record["final_text"] == "Your prompt has 5 words.", record["error"]
        assert record["cli_version"] == "1.0.0"
        changes = (await service.call("GET", f"/v1/subagents/{run['subagent_id']}/changes"))["changes"]
        assert [change["path"] for change in changes] == ["words.txt"]
        url = "/ui/plugins/external_agent/auth/probe?backend=example"
        assert await service.call("GET", url) == {"installed": True, "authenticated": True}
        (info,) = (await service.call("GET", "/v1/backends"))["backends"]
        assert (info["name"], info["capabilities_seen"]) == ("example", None)
    finally:
        await service.terminate()
