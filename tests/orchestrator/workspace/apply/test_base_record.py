"""Conflicts are where content differs from what the agent began with, however close in time things happen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.contract.changes import ApplyRequest, OnConflict
from orchestrator.contract.workspace import Prepared
from orchestrator.errors import ConflictError
from orchestrator.workspace import DirectoryWorkspaces
from orchestrator.workspace.apply import base_record
from tests.orchestrator.workspace.changes.test_patch import git
from tests.orchestrator.workspace.overlay import EARLIER, Overlay, nanoseconds, no_delete
from tests.orchestrator.workspace.trees import fake_whiteout, opaque, whiteout

ID = "0" * 32
RUN = "1" * 32


class Conversation:
    """Runs over a repo, one directly after the other: prepared, an agent's edits, ended."""

    def __init__(self, top: Path) -> None:
        self.repo = top / "repo"
        self.workspaces = DirectoryWorkspaces(
            Paths(state_dir=top / "state", runtime_dir=top / "run"), no_delete, whiteout=fake_whiteout
        )

    async def begin(self) -> Path:
        """The upper directory of a run that begins now."""
        self.made: Prepared = await self.workspaces.prepare(subagent_id=ID, source=self.repo, mode="overlay")
        assert self.made.mount.upper is not None
        return self.made.mount.upper

    async def end(self) -> None:
        await self.workspaces.run_ended(self.made.mount, run_id=RUN)

    async def apply(self, on_conflict: OnConflict = "refuse") -> dict[str, str]:
        request = ApplyRequest(on_conflict=on_conflict)
        done = await self.workspaces.apply(self.made.mount, request, author="agent")
        return {one.path: one.outcome for one in done.files}


def clone(repo: Path) -> None:
    """A repo whose files are written at this very moment."""
    repo.mkdir()
    for name in ("a", "b", "d/x", "d/y"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(f"{name}\n")


@pytest.mark.parametrize("on_conflict", ["refuse", "merge"])
async def test_clone_run_and_apply_directly_after_one_another(tmp_path: Path, on_conflict: OnConflict) -> None:
    for attempt in range(5):
        top = tmp_path / str(attempt)
        top.mkdir()
        made = Conversation(top)
        clone(made.repo)
        upper = await made.begin()
        (upper / "a").write_text("agent\n")
        whiteout(upper / "b")
        await made.end()
        assert await made.apply(on_conflict) == {"a": "applied", "b": "applied"}
        assert (made.repo / "a").read_text() == "agent\n"


@pytest.mark.parametrize("on_conflict", ["refuse", "merge"])
async def test_run_and_apply_again_and_again(tmp_path: Path, on_conflict: OnConflict) -> None:
    made = Conversation(tmp_path)
    clone(made.repo)
    for turn in range(5):
        upper = await made.begin()
        (upper / "a").write_text(f"{turn}\n")
        (upper / "d").mkdir(exist_ok=True)
        (upper / "d" / f"new{turn}").write_text("new\n")
        await made.end()
        assert await made.apply(on_conflict) == {"a": "applied", f"d/new{turn}": "applied"}


@pytest.mark.parametrize("again", [False, True])
async def test_a_directory_that_an_earlier_run_filled_is_removed_or_made_again(tmp_path: Path, again: bool) -> None:
    made = Conversation(tmp_path)
    clone(made.repo)
    upper = await made.begin()
    (upper / "d").mkdir()
    (upper / "d" / "x").write_text("first\n")
    await made.end()
    await made.apply()
    upper = await made.begin()
    assert not (upper / "d").exists()
    if again:
        (upper / "d").mkdir()
        opaque(upper / "d")
        (upper / "d" / "y").write_text("second\n")
    else:
        whiteout(upper / "d")
    await made.end()
    assert await made.apply() == {"d/x": "applied", "d/y": "applied"}
    assert (made.repo / "d" / "y").exists() is again


async def test_a_file_changed_just_after_a_run_began_is_a_conflict(tmp_path: Path) -> None:
    for attempt in range(5):
        top = tmp_path / str(attempt)
        top.mkdir()
        made = Conversation(top)
        clone(made.repo)
        upper = await made.begin()
        (made.repo / "a").write_text("host\n")
        (upper / "a").write_text("agent\n")
        (upper / "b").write_text("agent\n")
        await made.end()
        choices: tuple[OnConflict, ...] = ("refuse", "merge")
        for on_conflict in choices:
            with pytest.raises(ConflictError, match="changed while the agent worked") as caught:
                await made.apply(on_conflict)
            assert {one["path"] for one in caught.value.details["files"]} == {"a"}
        assert (made.repo / "a").read_text() == "host\n"


async def test_what_the_agent_could_not_see_is_a_conflict(tmp_path: Path) -> None:
    """Its own directory hides what the repo got there between two runs, even if it makes a file of that name."""
    made = Conversation(tmp_path)
    clone(made.repo)
    upper = await made.begin()
    (upper / "d").mkdir()
    opaque(upper / "d")
    await made.end()
    (made.repo / "d" / "host").write_text("host\n")
    (made.repo / "d" / "z").write_text("host\n")
    upper = await made.begin()
    (upper / "d" / "z").write_text("agent\n")
    await made.end()
    with pytest.raises(ConflictError) as caught:
        await made.apply()
    assert {one["path"] for one in caught.value.details["files"]} == {"d/host", "d/z"}


async def test_a_repo_that_is_made_again_between_two_runs_is_what_the_agent_sees(tmp_path: Path) -> None:
    made = Conversation(tmp_path)
    clone(made.repo)
    await made.begin()
    await made.end()
    shutil.rmtree(made.repo)
    clone(made.repo)
    upper = await made.begin()
    (upper / "a").write_text("agent\n")
    await made.end()
    assert await made.apply() == {"a": "applied"}


async def test_whole_seconds_say_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps no fractions (some: even seconds) rounds the time of a change down."""
    began = nanoseconds("2026-01-01T00:00:01.5+00:00")
    for stamp, unsure in (
        ("2025-12-31T23:59:59+00:00", False),
        ("2026-01-01T00:00:00+00:00", True),
        ("2026-01-01T00:00:01+00:00", True),
        ("2026-01-01T00:00:01.4+00:00", False),
        ("2026-01-01T00:00:01.5+00:00", True),
        ("2026-01-01T00:00:02+00:00", True),
    ):
        top = tmp_path / stamp
        top.mkdir()
        overlay = Overlay(top)
        (overlay.repo / "a").write_text("1\n")
        (overlay.upper / "a").write_text("2\n")
        base_record.mark_beginning(overlay.base, began)
        when = nanoseconds(stamp)
        monkeypatch.setattr(base_record, "changed_ns", lambda _, when=when: when)
        await overlay.workspaces.run_ended(overlay.mount, run_id=RUN)
        assert base_record.load(overlay.base).bases[b"a"].unsure is unsure, stamp


def test_the_clock_of_a_file_server_may_be_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_record, "clock_ns", lambda: 5_001_000_000)
    monkeypatch.setattr(base_record, "_file_clock_ns", iter([5_000_000_000, 5_000_000_000, 5_004_000_000]).__next__)
    base_record.begin(tmp_path, foreign_clock=True)
    assert (tmp_path / "record" / "began.json").read_text() == '{"first_ns": 4004000000, "latest_ns": 4004000000}'


async def test_without_a_known_beginning_everything_is_a_conflict(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "a").write_text("1\n")
    (overlay.upper / "a").write_text("2\n")
    await overlay.workspaces.run_ended(overlay.mount, run_id=RUN)
    with pytest.raises(ConflictError):
        await overlay.apply()


async def test_the_first_beginning_stands_for_all_runs_when_a_run_was_not_recorded(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "a").write_text("1\n")
    (overlay.upper / "a").write_text("2\n")
    base_record.mark_beginning(overlay.base, nanoseconds(EARLIER))
    with pytest.raises(ConflictError, match="changed while the agent worked"):
        await overlay.apply()


async def test_a_branch_gets_no_commit_when_nothing_was_changed(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "a").write_text("1\n")
    git(overlay.repo, "init", "-q", "-b", "main")
    git(overlay.repo, "add", "-A")
    git(overlay.repo, "commit", "-q", "-m", "First")
    done = await overlay.apply(branch="agent")
    assert (done.applied, done.branch, done.commit, done.files) == (False, None, None, ())
    (overlay.repo / "a").write_text("2\n")
    (overlay.upper / "a").write_text("1\n")  # what the repo's HEAD has, but not its work tree
    done = await overlay.apply(branch="agent")
    assert (done.applied, done.branch) == (False, None)
    assert git(overlay.repo, "branch", "--format=%(refname)") == b"refs/heads/main\n"
