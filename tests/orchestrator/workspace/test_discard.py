"""Dropping changes: the agent sees again what the repo has."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConflictError, InvalidRequestError, StorageError
from tests.orchestrator.workspace.overlay import Overlay
from tests.orchestrator.workspace.test_apply import NEW, OLD
from tests.orchestrator.workspace.test_apply_property import SLOW, in_place
from tests.orchestrator.workspace.test_changes_property import by_path, edits, expected
from tests.orchestrator.workspace.trees import File, Tree, opaque, paths, read, whiteout


async def changed(overlay: Overlay) -> set[str]:
    return {c.path for c in await overlay.changes()}


async def test_all_of_it(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    (overlay.upper / ".git").mkdir()
    await overlay.ended()
    assert len(await overlay.discard()) == len(expected(OLD, NEW))
    assert await overlay.changes() == []
    assert list(overlay.upper.iterdir()) == []
    assert sorted(p.name for p in overlay.base.iterdir()) == ["record", "snapshots", "upper", "work"]
    assert list((overlay.base / "record" / "blobs").iterdir()) == []
    assert read(overlay.repo) == OLD


async def test_what_we_may_not_remove_is_removed_with_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW)
    asked: list[Path] = []

    async def help_with(path: Path) -> None:
        asked.append(path)

    monkeypatch.setattr("orchestrator.workspace.service.removed", lambda _: False)
    overlay.workspaces._delete_tree = help_with
    await overlay.discard()
    assert [path.parent for path in asked] == [overlay.base]
    assert await overlay.changes() == []


async def test_some_paths(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, OLD, NEW, seed=4)
    assert await overlay.discard("d", "a") == ["a", "d/y", "d/z"]
    assert not {"a", "d/y", "d/z"} & await changed(overlay)
    assert "run" in await changed(overlay)
    with pytest.raises(InvalidRequestError, match="nothing was changed"):
        await overlay.discard("a")


async def test_a_file_comes_back_into_a_directory_that_hides_the_repo(tmp_path: Path) -> None:
    overlay = Overlay.of(tmp_path, {b"d": {b"x": File(b"x", executable=True), b"y": File(b"y")}}, {})
    for child in overlay.upper.iterdir():
        child.unlink()
    whiteout(overlay.upper / "d")
    await overlay.discard("d/x")
    assert await changed(overlay) == {"d/y"}
    assert (overlay.upper / "d" / "x").stat().st_mode & 0o111
    await overlay.discard("d/y")
    assert list(overlay.upper.iterdir()) == []


async def test_what_is_in_the_way_must_be_named_too(tmp_path: Path) -> None:
    overlay = Overlay.of(
        tmp_path, {b"d": {b"x": File(b"x")}, b"f": File(b"f")}, {b"d": File(b"d"), b"f": {b"in": File(b"i")}}
    )
    with pytest.raises(ConflictError, match="name that one too"):
        await overlay.discard("d/x")
    with pytest.raises((ConflictError, StorageError)):
        await overlay.discard("f/in", "d/x")
    await overlay.discard("f", "d")
    assert await overlay.changes() == []


async def test_an_opaque_directory_that_hides_nothing_any_more_lets_the_repo_through(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.repo / "d" / "e").mkdir(parents=True)
    for name in ("d/x", "d/e/y"):
        (overlay.repo / name).write_text(name)
    (overlay.upper / "d").mkdir()
    opaque(overlay.upper / "d")
    await overlay.discard("d")
    assert list(overlay.upper.iterdir()) == []
    (overlay.repo / "d" / "later").write_text("x")
    assert await overlay.changes() == []


@settings(database=None, max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(edits(), st.integers(0, 2**32))
def test_discarding_some_paths_leaves_the_others(trees: tuple[Tree, Tree], seed: int) -> None:
    old, new = trees
    wanted = expected(old, new)
    choice = random.Random(seed)
    some = {path for path in wanted if choice.random() < 0.5}

    def check(overlay: Overlay) -> None:
        if not some:
            return
        listed = asyncio.run(overlay.changes())
        pairs = {frozenset((c.path, c.old_path)) for c in listed if c.old_path is not None}
        names = {path.decode("utf-8", "surrogateescape") for path in some}
        before = set[str]()
        while names != before:  # either name of a renamed file means both, and a directory's what is in it
            before = set(names)
            for pair in pairs:
                if any(covered(os.fsencode(name), names) for name in pair):
                    names |= pair
        try:
            asyncio.run(overlay.discard(*names))
        except ConflictError:
            return
        left = by_path(asyncio.run(overlay.changes()))
        gone = {path for path in wanted if covered(path, names)}
        # what took the place of a directory, or was in it, is named by it
        assert left.keys() == wanted.keys() - gone
        assert paths(read(overlay.repo)) == paths(old)

    in_place(trees, seed, None, check)


def covered(path: bytes, names: set[str]) -> bool:
    text = path.decode("utf-8", "surrogateescape")
    return any(text == name or text.startswith(name + "/") for name in names)
