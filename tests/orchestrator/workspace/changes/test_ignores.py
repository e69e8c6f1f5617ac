"""Ignored files: git's own answer, as the agent sees the rules, and never by running git in the agent's repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.contract.changes import ChangeSelection
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.workspace.changes import ignores
from orchestrator.workspace.changes.ignores import ignored_paths
from tests.orchestrator.workspace.changes.test_patch import git, mount, upper
from tests.orchestrator.workspace.overlay import list_changes, unified_patch
from tests.orchestrator.workspace.trees import fake_whiteout, opaque, whiteout

__all__ = ["mount"]


async def listed(mount: WorkspaceMount) -> dict[str, bool]:
    return {c.path: c.ignored for c in await list_changes(mount)}


async def test_rules_of_the_repo_and_of_the_agent(mount: WorkspaceMount) -> None:
    (mount.source / ".gitignore").write_text("*.o\nbuild/\n")
    (mount.source / "sub").mkdir()
    (mount.source / "sub" / ".gitignore").write_text("!keep.o\n")
    for name in ("a.o", "b.c", "sub/keep.o", "build/deep/x", "new/log"):
        (upper(mount) / name).parent.mkdir(parents=True, exist_ok=True)
        (upper(mount) / name).write_text("x\n")
    (upper(mount) / "new" / ".gitignore").write_text("log\n")
    assert await listed(mount) == {
        "a.o": True,
        "b.c": False,
        "build/deep/x": True,
        "new/.gitignore": False,
        "new/log": True,
        "sub/keep.o": False,
    }


async def test_rules_that_the_agent_removed_do_not_count(mount: WorkspaceMount) -> None:
    (mount.source / ".gitignore").write_text("*.o\n")
    (mount.source / "d").mkdir()
    (mount.source / "d" / ".gitignore").write_text("*.p\n")
    whiteout(upper(mount) / ".gitignore")
    (upper(mount) / "d").mkdir()
    (upper(mount) / "d" / "x.p").write_text("x\n")
    (upper(mount) / "x.o").write_text("x\n")
    assert await listed(mount) == {".gitignore": False, "d/x.p": True, "x.o": False}
    opaque(upper(mount) / "d")
    assert (await listed(mount))["d/x.p"] is False


async def test_what_the_repo_tracks_is_never_ignored(mount: WorkspaceMount) -> None:
    git(mount.source, "init", "-q")
    (mount.source / "forced.o").write_text("1\n")
    (mount.source / "built.o").write_text("1\n")
    git(mount.source, "add", "forced.o")
    (mount.source / ".git" / "info" / "exclude").write_text("*.o\n")
    for name in ("forced.o", "built.o", "new.o"):
        (upper(mount) / name).write_text("2\n")
    assert await listed(mount) == {"built.o": True, "forced.o": False, "new.o": True}


async def test_an_ignored_file_is_in_the_patch_only_when_asked_for(mount: WorkspaceMount) -> None:
    (mount.source / ".gitignore").write_text("out/\n")
    (upper(mount) / "out").mkdir()
    (upper(mount) / "out" / "x").write_text("x\n")

    async def patch(**wanted: object) -> bytes:
        return await unified_patch(mount, ChangeSelection(**wanted))  # type: ignore[arg-type]

    assert await patch() == b""
    assert await patch(paths=("out",)) == b""
    assert b"+x\n" in await patch(paths=("out/x",))
    assert b"+x\n" in await patch(ignored=True)


async def test_configuration_and_hooks_of_the_agent_are_not_run(mount: WorkspaceMount, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (upper(mount) / ".git").mkdir()
    (upper(mount) / ".git" / "config").write_text(f"[core]\n\tfsmonitor = {hook}\n\thooksPath = {tmp_path}\n")
    (upper(mount) / ".gitignore").symlink_to("/etc/passwd")
    (upper(mount) / "x").write_text("x\n")
    assert await listed(mount) == {".gitignore": False, "x": False}
    assert not (tmp_path / "ran").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hook", "lower", "upper", "work"]  # nothing of ours is left


def test_without_git_nothing_is_ignored(mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch) -> None:
    (mount.source / ".gitignore").write_text("*\n")
    monkeypatch.setattr(ignores, "installed", lambda: None)
    assert ignored_paths([b"x"], upper=upper(mount), lower=mount.source, whiteout=fake_whiteout) == frozenset()


PATTERNS = st.lists(
    st.sampled_from(
        [
            "*",
            "a",
            "/a",
            "a/",
            "*.o",
            "!a",
            "!*.o",
            "**/b",
            "b/**",
            "a/b",
            "#",
            "[ab]",
            "c*",
            "",
            " x",
            ":(top)a",
            "\\!a",
        ]
    ),
    max_size=4,
).map("\n".join)
PARTS = st.sampled_from(["a", "b", "x.o", "c d", ":a", "!a", "#", "(top)", "*"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@settings(database=None, max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["", "a", "a/b"]), PATTERNS, max_size=3), st.sets(PATHS, max_size=8))
def test_the_answer_is_gits_own(
    tmp_path_factory: pytest.TempPathFactory, rules: dict[str, str], wanted: set[str]
) -> None:
    top = tmp_path_factory.mktemp("t")
    lower, above = top / "lower", top / "upper"
    for directory in (lower, above):
        directory.mkdir()
    for name, text in rules.items():
        (lower / name).mkdir(parents=True, exist_ok=True)
        (lower / name / ".gitignore").write_text(text)
    files = {path for path in wanted if not any(other.startswith(path + "/") for other in wanted) and path not in rules}
    files = {path for path in files if not any(name == path or name.startswith(path + "/") for name in rules)}
    for path in files:
        (lower / path).parent.mkdir(parents=True, exist_ok=True)
        (lower / path).write_text("")
    git(lower, "init", "-q")
    said = git(lower, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0")
    found = ignored_paths([os.fsencode(p) for p in files], upper=above, lower=lower, whiteout=fake_whiteout)
    assert found == {os.fsencode(p) for p in files} - set(said)
