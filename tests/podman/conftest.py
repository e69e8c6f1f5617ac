"""The scripted provider and a live service for tests with real containers."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, live_service


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(api_key=REAL_KEY) as provider:
        yield provider


@pytest.fixture
async def service(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[LiveService]:
    async with live_service(tmp_path, provider.base_url) as service:
        yield service


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small git repository."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "README.md").write_text("# sample\n")
    (root / "gone.txt").write_text("to be deleted\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(root)]
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *argv], check=True)
    return root
