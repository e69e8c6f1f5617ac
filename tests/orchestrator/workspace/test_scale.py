"""What is done to a repo is in proportion to what was changed, not to its size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.workspace import DirectoryWorkspaces
from tests.orchestrator.workspace.overlay import LATER, Overlay, no_delete
from tests.orchestrator.workspace.trees import whiteout


class Counter:
    """Counts the calls that look at directories and files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        for name in ("listdir", "scandir", "open", "stat", "lstat"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: object) -> object:
        def counted(*arguments: object, **more: object) -> object:
            self.calls += 1
            return call(*arguments, **more)  # type: ignore[operator]

        return counted


async def work(top: Path, files: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Calls of a first start, and of everything that is done with three changes; the repo has so many files."""
    top.mkdir()
    overlay = Overlay(top)
    for number in range(files):
        directory = overlay.repo / f"d{number % 10}" / f"e{number % 50}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / str(number)).write_text("x\n")
    (overlay.upper / "d0" / "e0").mkdir(parents=True)
    (overlay.upper / "d0" / "e0" / "0").write_text("changed\n")
    (overlay.upper / "d0" / "e0" / "new").write_text("new\n")
    (overlay.upper / "d1" / "e1").mkdir(parents=True)
    whiteout(overlay.upper / "d1" / "e1" / "1")
    workspaces = DirectoryWorkspaces(Paths(state_dir=top / "state", runtime_dir=top / "run"), no_delete)
    with monkeypatch.context() as patch:
        counter = Counter(patch)
        await workspaces.prepare(subagent_id="0" * 32, source=overlay.repo, mode="overlay")
        started = counter.calls
        await overlay.ended(began_at=LATER)
        assert len(await overlay.changes()) == 3
        assert (await overlay.apply()).applied
        return started, counter.calls - started


async def test_a_larger_repo_costs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = await work(tmp_path / "small", 100, monkeypatch)
    large = await work(tmp_path / "large", 5000, monkeypatch)
    assert large == small
