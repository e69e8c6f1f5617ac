"""The process ``podmentor bench`` where it cannot go on; a whole bench of each backend is in test_backends."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.podman.live import PROJECT, podman

pytestmark = [pytest.mark.podman, pytest.mark.timeout(400)]


async def bench(state: Path, *arguments: str) -> tuple[int | None, Any, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        "--state",
        str(state),
        "bench",
        "--json",
        "-v",
        *arguments,
        cwd=PROJECT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 380)
    return process.returncode, json.loads(out or b"null"), err.decode()


async def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    code, report, _ = await bench(tmp_path / "s", "claude-code", "--image", f"1.0.0-{secrets.token_hex(6)}")
    assert code == 1
    first, *others = report["backends"][0]["results"]
    assert first["outcome"] == "fail"
    assert "podmentor images list" in first["detail"]
    assert {result["outcome"] for result in others} == {"skipped"}


async def test_a_bench_that_is_told_to_end_takes_its_runs_with_it(tmp_path: Path) -> None:
    state = tmp_path / "s"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        "--state",
        str(state),
        "bench",
        "claude-code",
        "-v",
        cwd=PROJECT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    await asyncio.wait_for(process.stderr.readline(), 100)  # the first scene has ended, others have begun
    instance = (state / "bench" / "claude-code" / "state" / "instance").read_text().strip()
    process.terminate()
    await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 130
    listing = await podman("ps", "-a", "--filter", f"label=podmentor.instance={instance}", "--format", "{{.ID}}")
    assert listing == ""
    assert not (state / "bench" / "claude-code").exists()
