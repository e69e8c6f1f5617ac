"""Applying, case by case: what reaches the repo, what does not, and that it is all or nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator.errors import ConflictError, InvalidRequestError, StorageError
from orchestrator.workspace.apply import base_record, rollback, transaction
from tests.orchestrator.workspace.changes.test_patch import git
from tests.orchestrator.workspace.overlay import EARLIER, Overlay, nanoseconds, outcomes
from tests.orchestrator.workspace.trees import File, Link, Tree, make, opaque, read, whiteout, without_empty

OLD: Tree = {
    b"a": File(b"a\n"),
    b"gone": File(b"gone\n"),
    b"run": File(b"#!\n"),
    b"d": {b"x": File(b"x\n"), b"y": File(b"y\n")},
    b"kind": File(b"file\n"),
    b"tree": {b"deep": {b"f": File(b"f\n")}},
    b"flat": File(b"flat\n"),
    b"same": File(b"same\n"),
}
NEW: Tree = {
    b"a": File(b"A\n"),
    b"run": File(b"#!\n", executable=True),
    b"d": {b"x": File(b"x\n"), b"z": File(b"\0\xff" * 999)},
    b"kind": Link(b"/etc/passwd"),
    b"tree": File(b"now a file\n"),
    b"flat": {b"in": {b"side": File(b"")}},
    b"same": File(b"same\n"),
    b"odd \xff\n": File(b"odd\n"),
}


async def test_all_kinds_of_changes_reach_the_repo_and_leave_the_overlay(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW, seed=3)
    await overlay.ended()
    result = await overlay.apply()
    assert result.applied
    assert set(outcomes(result).values()) == {"applied"}
    assert read(overlay.repo) == NEW
    assert await overlay.changes() == []
    assert [p.name for p in tmp_path.rglob(".podmentor*")] == []
    assert sorted(p.name for p in overlay.base.iterdir()) == ["record", "snapshots", "upper", "work"]
    (overlay.repo / "a").write_text("later\n")  # and what the repo gets later shows through
    assert await overlay.changes() == []


async def test_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    result = await overlay.apply(dry_run=True)
    assert (result.applied, outcomes(result)["a"]) == (False, "applied")
    assert read(overlay.repo) == OLD


async def test_chosen_paths_alone_are_applied(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    assert outcomes(await overlay.apply("d", "./run")) == {"d/y": "applied", "d/z": "applied", "run": "applied"}
    now = read(overlay.repo)
    assert (now[b"d"], now[b"run"], now[b"a"]) == (NEW[b"d"], NEW[b"run"], OLD[b"a"])
    assert "a" in {c.path for c in await overlay.changes()}
    with pytest.raises(InvalidRequestError, match="nothing was changed at 'same'"):
        await overlay.apply("same", "a")
    for bad in ("/etc", "../x", "a/../../b", "\0"):
        with pytest.raises(InvalidRequestError):
            await overlay.apply(bad)


async def test_either_name_of_a_renamed_file_means_both(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"old": File(b"1\n2\n3\n")}, {b"new": File(b"1\n2\n3\n")})
    await overlay.apply("old")
    assert read(overlay.repo) == {b"new": File(b"1\n2\n3\n")}


async def test_permissions_stay_and_special_bits_never_come(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"a": File(b"1"), b"b": File(b"1")}, {b"a": File(b"2"), b"b": File(b"2")})
    (overlay.repo / "a").chmod(0o640)
    (overlay.repo / "b").chmod(0o440)
    (overlay.upper / "a").chmod(0o6777)
    (overlay.upper / "new").write_text("x")
    (overlay.upper / "new").chmod(0o6777)
    await overlay.ended()
    await overlay.apply()
    modes = {name: stat.S_IMODE((overlay.repo / name).stat().st_mode) for name in ("a", "b", "new")}
    assert modes == {"a": 0o750, "b": 0o440, "new": 0o755}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
async def test_the_owner_stays(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"a": File(b"1")}, {b"a": File(b"2")})
    os.chown(overlay.repo / "a", 12345, 12346)
    await overlay.ended()
    await overlay.apply()
    st = (overlay.repo / "a").stat()
    assert (st.st_uid, st.st_gid) == (12345, 12346)


async def test_git_directories_pipes_and_sockets_are_never_applied(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.upper / ".git" / "hooks").mkdir(parents=True)
    (overlay.upper / ".git" / "hooks" / "post-checkout").write_text("evil")
    (overlay.upper / "sub" / ".GIT").mkdir(parents=True)
    (overlay.upper / "sub" / ".GIT" / "config").write_text("evil")
    os.mkfifo(overlay.upper / "pipe", 0o600)
    (overlay.upper / "ok").write_text("fine")
    result = await overlay.apply()
    assert outcomes(result) == {"ok": "applied", "pipe": "skipped", "sub/.GIT/config": "skipped"}
    assert read(overlay.repo) == {b"ok": File(b"fine")}


async def test_nothing_is_written_through_a_link_of_the_repo(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (overlay.upper / "dir").mkdir()
    (overlay.upper / "dir" / "f").write_text("x")
    (overlay.repo / "dir").mkdir()
    await overlay.ended()
    (overlay.repo / "dir").rmdir()
    (overlay.repo / "dir").symlink_to(outside)
    for choice in ("refuse", "merge"):
        with pytest.raises(ConflictError):
            await overlay.apply(on_conflict=choice, began_at=EARLIER)
    with pytest.raises(ConflictError, match="a symbolic link at 'dir'"):
        await overlay.apply("dir/f", on_conflict="theirs")
    assert (overlay.repo / "dir").is_symlink()
    await overlay.apply(on_conflict="theirs")
    assert read(overlay.repo) == {b"dir": {b"f": File(b"x")}}
    assert list(outside.iterdir()) == []


def host_changes(overlay: Overlay) -> None:
    (overlay.repo / "changed").write_text("host\n")
    (overlay.repo / "appeared").write_text("host\n")
    (overlay.repo / "vanished").unlink()


CONFLICTS: tuple[Tree, Tree] = (
    {b"changed": File(b"1\n"), b"vanished": File(b"1\n"), b"clean": File(b"1\n")},
    {b"changed": File(b"2\n"), b"vanished": File(b"2\n"), b"clean": File(b"2\n"), b"appeared": File(b"2\n")},
)


async def test_conflicts_are_told_per_path_and_nothing_is_applied(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, *CONFLICTS)
    await overlay.ended()
    host_changes(overlay)
    before = read(overlay.repo)
    with pytest.raises(ConflictError) as caught:
        await overlay.apply()
    reasons = {one["path"]: one["reason"] for one in caught.value.details["files"]}
    assert reasons.keys() == {"changed", "appeared", "vanished"}
    assert "changed since" in reasons["changed"]
    assert "did not have" in reasons["appeared"]
    assert "is gone" in reasons["vanished"]
    assert read(overlay.repo) == before
    planned = outcomes(await overlay.apply(dry_run=True))
    assert planned == {"clean": "applied", "changed": "conflict", "appeared": "conflict", "vanished": "conflict"}
    assert outcomes(await overlay.apply("clean")) == {"clean": "applied"}


async def test_theirs_takes_the_agents_and_ours_keeps_the_repos(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, *CONFLICTS)
    await overlay.ended()
    host_changes(overlay)
    kept = await overlay.apply(on_conflict="ours")
    assert outcomes(kept) == {"clean": "applied", "changed": "kept", "appeared": "kept", "vanished": "kept"}
    assert read(overlay.repo) == {b"changed": File(b"host\n"), b"appeared": File(b"host\n"), b"clean": File(b"2\n")}
    await overlay.apply(on_conflict="theirs")
    assert read(overlay.repo) == CONFLICTS[1]
    assert await overlay.changes() == []


async def test_a_merge_takes_both_sides_edits(tmp_path: Path) -> None:
    text = b"".join(b"%d\n" % i for i in range(20))
    overlay = Overlay.of(tmp_path, {b"f": File(text)}, {b"f": File(text.replace(b"3\n", b"three\n", 1))})
    await overlay.ended()
    (overlay.repo / "f").write_bytes(text + b"host\n")
    (overlay.repo / "f").chmod(0o755)
    assert outcomes(await overlay.apply(on_conflict="merge")) == {"f": "merged"}
    assert read(overlay.repo) == {b"f": File(text.replace(b"3\n", b"three\n", 1) + b"host\n", executable=True)}
    assert await overlay.changes() == []


async def test_a_merge_that_cannot_be_is_a_conflict(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"f": File(b"1\n"), b"b": File(b"\0")}, {b"f": File(b"2\n"), b"b": File(b"\0\1")})
    await overlay.ended()
    (overlay.repo / "f").write_bytes(b"3\n")
    (overlay.repo / "b").write_bytes(b"\0\2")
    with pytest.raises(ConflictError) as caught:
        await overlay.apply(on_conflict="merge")
    reasons = {one["path"]: one["reason"] for one in caught.value.details["files"]}
    assert reasons["f"].endswith("both sides changed the same lines")
    assert reasons["b"].endswith("binary")


async def test_a_file_changed_while_the_agent_worked_is_a_conflict(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"f": File(b"1\n")}, {b"f": File(b"2\n")})
    await overlay.ended(began_at=EARLIER)  # the repo's file is younger than the run
    with pytest.raises(ConflictError, match="changed while the agent worked"):
        await overlay.apply(on_conflict="merge")
    assert (await overlay.apply(on_conflict="theirs")).applied


async def test_the_first_run_that_changed_a_path_counts(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"f": File(b"1\n")}, {b"f": File(b"2\n")})
    await overlay.ended()
    (overlay.repo / "f").write_text("host\n")
    (overlay.upper / "f").write_text("3\n")
    await overlay.ended(began_at=EARLIER)
    with pytest.raises(ConflictError, match="changed since the agent first"):
        await overlay.apply()


async def test_a_later_run_sees_what_the_repo_had_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the agent touches the path in that run; else it has never seen what the repo got meanwhile."""
    monkeypatch.setattr(base_record, "changed_ns", lambda stamp: stamp[3])  # a time that can be set
    times = {
        name: f"2026-01-0{day}T00:00:00+00:00" for day, name in enumerate(("repo", "one", "host", "two", "agent"), 1)
    }

    def at(path: Path, when: str) -> None:
        os.utime(path, ns=(0, nanoseconds(times[when])), follow_symlinks=False)

    overlay = Overlay.of(
        tmp_path, {b"f": File(b"1\n"), b"d": {b"x": File(b"x")}}, {b"f": File(b"1\n"), b"d": File(b"d")}
    )
    for path in (overlay.repo / "f", overlay.repo / "d" / "x"):
        at(path, "repo")
    monkeypatch.setattr(base_record, "clock_ns", lambda: nanoseconds(times["one"]))
    await overlay.ended(began_at=times["one"])
    (overlay.repo / "f").write_text("host\n")
    (overlay.repo / "d" / "hidden").write_text("host\n")
    for path in (overlay.repo / "f", overlay.repo / "d" / "hidden"):
        at(path, "host")
    (overlay.upper / "f").write_text("agent\n")
    at(overlay.upper / "f", "agent")
    await overlay.ended(began_at=times["two"])
    planned = outcomes(await overlay.apply(dry_run=True))
    assert planned == {"f": "applied", "d": "conflict", "d/x": "applied", "d/hidden": "conflict"}


async def test_a_copy_that_the_agent_did_not_change_hides_nothing_after_its_run(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"f": File(b"1\n")}, {b"f": File(b"1\n")})
    (overlay.upper / "f").write_text("1\n")
    await overlay.ended()
    (overlay.repo / "f").write_text("host\n")
    assert await overlay.changes() == []


async def test_what_the_repo_deleted_below_an_untouched_copy_does_not_come_back(tmp_path: Path) -> None:
    """An opaque directory hides the repo; a copy in it that is what the repo had is no change until that goes."""
    old: Tree = {b"d": {b"x": File(b"x"), b"y": File(b"y")}}
    overlay = Overlay(tmp_path)
    make(overlay.repo, old)
    make(overlay.upper, {b"d": {b"x": File(b"x")}})
    opaque(overlay.upper / "d")
    await overlay.ended()
    (overlay.repo / "d" / "x").unlink()
    with pytest.raises(ConflictError) as caught:
        await overlay.apply()
    assert [one["path"] for one in caught.value.details["files"]] == ["d/x"]


async def test_what_the_repo_has_by_now_is_no_change(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"f": File(b"1\n")}, {b"f": File(b"2\n"), b"g": File(b"2\n")})
    await overlay.ended()
    (overlay.repo / "f").write_text("2\n")
    assert outcomes(await overlay.apply()) == {"g": "applied"}


async def test_a_directory_with_files_of_the_repos_own_is_not_replaced(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"d": {b"x": File(b"x")}}, {b"d": File(b"file")})
    await overlay.ended()
    (overlay.repo / "d" / "host").write_text("host")
    with pytest.raises(ConflictError):
        await overlay.apply("d", began_at=EARLIER)
    with pytest.raises(ConflictError, match="would stay"):
        await overlay.apply("d", began_at=EARLIER, on_conflict="ours")
    assert read(overlay.repo) == {b"d": {b"x": File(b"x"), b"host": File(b"host")}}


async def test_a_direct_or_empty_workspace_has_nothing_to_apply_to(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.base / "empty").mkdir()
    overlay.mount = type(overlay.mount)(mode="overlay", source=overlay.base / "empty", upper=overlay.upper)
    with pytest.raises(InvalidRequestError, match="without a repo"):
        await overlay.apply()
    overlay.mount = type(overlay.mount)(mode="direct", source=overlay.repo)
    with pytest.raises(InvalidRequestError, match="direct"):
        await overlay.apply()


class Crash(BaseException):
    """The machine stops here."""


class CrashingOs:
    """``os``, until it has changed so many entries."""

    def __init__(self, left: int, error: type[BaseException]) -> None:
        self.left = left
        self.error = error

    def __getattr__(self, name: str) -> object:
        if name in {"rename", "unlink"}:
            if self.left == 0:
                raise self.error(5, "no more")
            self.left -= 1
        return getattr(os, name)


@pytest.mark.parametrize("steps", range(12))
async def test_a_failure_rolls_back_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW, seed=1)
    await overlay.ended()
    monkeypatch.setattr(transaction, "os", CrashingOs(steps, OSError))
    try:
        done = (await overlay.apply()).applied
    except (ConflictError, StorageError):
        done = False
    assert read(overlay.repo) == (NEW if done else OLD)
    assert not (overlay.base / "apply").exists()
    assert [p.name for p in overlay.repo.rglob(".podmentor*")] == []
    monkeypatch.setattr(transaction, "os", os)
    assert (await overlay.apply()).applied
    assert read(overlay.repo) == NEW


@pytest.mark.parametrize("steps", range(14))
async def test_a_crash_leaves_before_or_after_and_the_next_start_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW, seed=2)
    await overlay.ended()
    monkeypatch.setattr(transaction, "os", CrashingOs(steps, Crash))
    monkeypatch.setattr(transaction, "recover", lambda _: None)
    crashed = False
    try:
        await overlay.apply()
    except Crash:
        crashed = True
    how = await overlay.workspaces.recover()
    if not crashed:
        assert (how, read(overlay.repo)) == ({}, NEW)
        return
    assert set(how.values()) <= {"rolled_back"}
    assert read(overlay.repo) == OLD
    assert [p.name for p in tmp_path.rglob(".podmentor*")] == []
    assert await overlay.workspaces.recover() == {}


async def test_a_crash_behind_the_last_step_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    await overlay.ended()

    def crash(path: Path) -> None:
        raise Crash

    monkeypatch.setattr("orchestrator.workspace.apply.transaction.shutil.rmtree", crash)
    with pytest.raises(Crash):
        await overlay.apply()
    monkeypatch.undo()
    assert await overlay.workspaces.recover() == {"subagent": "completed"}
    assert read(overlay.repo) == NEW


async def test_a_rollback_leaves_alone_what_somebody_else_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = Overlay.of(tmp_path, {b"a": File(b"1"), b"b": File(b"1")}, {b"a": File(b"2"), b"b": File(b"2")})
    await overlay.ended()
    monkeypatch.setattr(transaction, "os", CrashingOs(2, Crash))
    monkeypatch.setattr(transaction, "recover", lambda _: None)
    with pytest.raises(Crash):
        await overlay.apply()
    (overlay.repo / "a").write_text("somebody's")
    assert rollback.recover(overlay.base / "apply") == "rolled_back"
    assert read(overlay.repo) == {b"a": File(b"somebody's"), b"b": File(b"1")}


async def test_a_branch_gets_a_commit_and_the_work_tree_stays(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    git(overlay.repo, "init", "-q", "-b", "main")
    git(overlay.repo, "add", "-A")
    git(overlay.repo, "commit", "-q", "-m", "First")
    hook = overlay.repo / ".git" / "hooks" / "reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    await overlay.ended()
    result = await overlay.apply(branch="agent/one", message="What the agent did")
    assert (result.applied, result.branch) == (True, "agent/one")
    assert not (tmp_path / "ran").exists()
    assert git(overlay.repo, "status", "--porcelain") == b""
    assert git(overlay.repo, "log", "-1", "--format=%s|%an|%P", "agent/one").decode().strip() == (
        f"What the agent did|claude-code|{git(overlay.repo, 'rev-parse', 'main').decode().strip()}"
    )
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", "-b", "agent/one", str(overlay.repo), str(copy))
    assert without_empty({k: v for k, v in read(copy).items() if k != b".git"}) == NEW
    with pytest.raises(ConflictError, match="already"):
        await overlay.apply(branch="agent/one")
    for bad in ("a..b", "-x", "x.lock", "@{-1}"):
        with pytest.raises(InvalidRequestError):
            await overlay.apply(branch=bad)


async def test_a_branch_needs_a_git_repository(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    await overlay.ended()
    with pytest.raises(InvalidRequestError, match="not the root of a git repository"):
        await overlay.apply(branch="x")
    assert read(overlay.repo) == OLD


async def test_an_opaque_directory_that_is_applied_in_part_still_hides_the_rest(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    make(overlay.repo, {b"d": {b"x": File(b"x"), b"e": {b"y": File(b"y")}}})
    make(overlay.upper, {b"d": {b"new": File(b"n"), b"e": {b"z": File(b"z")}}})
    opaque(overlay.upper / "d")
    await overlay.apply("d/x", "d/new")
    assert read(overlay.repo) == {b"d": {b"new": File(b"n"), b"e": {b"y": File(b"y")}}}
    assert {(c.path, c.change) for c in await overlay.changes()} == {("d/e/y", "deleted"), ("d/e/z", "added")}


async def test_a_whiteout_goes_once_its_deletion_is_applied(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "f").write_text("1")
    whiteout(overlay.upper / "f")
    await overlay.ended()
    await overlay.apply()
    assert list(overlay.upper.iterdir()) == []
