"""Random trees and random edits on both sides: what applying makes of the repo."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConflictError
from tests.orchestrator.workspace.changes.test_patch import git
from tests.orchestrator.workspace.overlay import EARLIER, Overlay
from tests.orchestrator.workspace.test_changes_property import edited, edits
from tests.orchestrator.workspace.trees import File, Tree, make, paths, read, without_empty

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SEEDS = st.integers(0, 2**32)


def in_place(trees: tuple[Tree, Tree], seed: int, host: Tree | None, what: Callable[[Overlay], None]) -> None:
    with tempfile.TemporaryDirectory() as top:
        overlay = Overlay.of(Path(top), *trees, seed)
        asyncio.run(overlay.ended())
        if host is not None:
            subprocess.run(["rm", "-rf", overlay.repo], check=True)
            overlay.repo.mkdir()
            make(overlay.repo, host)
        what(overlay)


@settings(database=None, max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(edits(), SEEDS)
def test_the_repo_becomes_what_the_agent_sees(trees: tuple[Tree, Tree], seed: int) -> None:
    def check(overlay: Overlay) -> None:
        asyncio.run(overlay.apply())
        assert read(overlay.repo) == without_empty(trees[1])
        assert asyncio.run(overlay.changes()) == []

    in_place(trees, seed, None, check)


@st.composite
def three(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    old, agent = draw(edits())
    return old, agent, without_empty(draw(edited(old)))


@settings(database=None, max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(three(), SEEDS)
def test_edits_on_both_sides_are_joined_or_nothing_is_touched(trees: tuple[Tree, Tree, Tree], seed: int) -> None:
    old, agent, host = trees
    base, wanted, now = paths(old), paths(agent), paths(host)

    def check(overlay: Overlay) -> None:
        done = True
        try:
            asyncio.run(
                overlay.apply(began_at=EARLIER)
            )  # what the host has now was made while the conversation went on
        except ConflictError:
            done = False
        after = paths(read(overlay.repo))
        if not done:
            assert after == now
            return
        joined = {}
        for path in base.keys() | wanted.keys() | now.keys():
            mine, theirs, was = now.get(path), wanted.get(path), base.get(path)
            assert mine == was or theirs == was or mine == theirs  # anything else is a conflict
            if (kept := theirs if mine == was else mine) is not None:
                joined[path] = kept
        assert after == joined

    in_place((old, agent), seed, host, check)


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=12).map(b"".join)


@st.composite
def versions(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    base = draw(st.lists(st.sampled_from([b"%d\n" % i for i in range(12)]), min_size=6, max_size=12, unique=True))

    def other() -> bytes:
        at = draw(st.integers(0, len(base)))
        return b"".join([*base[:at], draw(LINES), *base[at + draw(st.integers(0, 2)) :]])

    return b"".join(base), other(), other()


@settings(database=None, max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(versions())
def test_a_merge_is_what_git_makes_of_it(texts: tuple[bytes, bytes, bytes]) -> None:
    base, agent, host = texts
    with tempfile.TemporaryDirectory() as top:
        names = [Path(top, name) for name in ("host", "base", "agent")]
        for path, text in zip(names, (host, base, agent), strict=True):
            path.write_bytes(text)
        said = subprocess.run(["git", "merge-file", "-p", *map(str, names)], capture_output=True, check=False)
    changed_twice = len({base, agent, host}) == 3

    def check(overlay: Overlay) -> None:
        try:
            asyncio.run(overlay.apply(on_conflict="merge"))
        except ConflictError:
            assert changed_twice
            assert said.returncode != 0
            assert read(overlay.repo) == {b"f": File(host)}
        else:
            assert said.returncode == 0
            assert read(overlay.repo) == {b"f": File(said.stdout)}

    in_place(({b"f": File(base)}, {b"f": File(agent)}), 0, {b"f": File(host)}, check)


@settings(database=None, max_examples=20, deadline=None, suppress_health_check=SLOW)
@given(edits(), SEEDS)
def test_a_branch_has_what_the_agent_sees(trees: tuple[Tree, Tree], seed: int) -> None:
    old, new = trees

    def check(overlay: Overlay) -> None:
        git(overlay.repo, "init", "-q", "-b", "main")
        git(overlay.repo, "add", "-A", "-f")
        git(overlay.repo, "commit", "-q", "--allow-empty", "-m", "First")
        made = asyncio.run(overlay.apply(branch="agent"))
        assert (made.branch is None) == (old == without_empty(new))
        if made.branch is None:
            return
        copy = overlay.base.parent / "copy"
        git(overlay.repo, "-c", "core.protectNTFS=false", "worktree", "add", "-q", str(copy), "agent")
        found = read(copy)
        found.pop(b".git")
        assert found == without_empty(new)
        there = read(overlay.repo)
        there.pop(b".git")
        assert there == without_empty(old)

    in_place(trees, seed, None, check)
