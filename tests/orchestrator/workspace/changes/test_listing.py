"""Renames: found, never invented, and bounded; line counts that git agrees with."""

from __future__ import annotations

import pytest

from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.workspace.changes import listing
from tests.orchestrator.workspace.changes.test_patch import git, mount, upper
from tests.orchestrator.workspace.overlay import list_changes, unified_patch
from tests.orchestrator.workspace.trees import whiteout

__all__ = ["mount"]
LINES = b"".join(b"line %d\n" % i for i in range(20))


async def renames(mount: WorkspaceMount, old: dict[str, bytes], new: dict[str, bytes]) -> dict[str, str]:
    """What the list says was renamed, new name to old, when ``old`` files are gone and ``new`` ones are there."""
    for name, data in old.items():
        (mount.source / name).parent.mkdir(exist_ok=True)
        (mount.source / name).write_bytes(data)
        (upper(mount) / name).parent.mkdir(exist_ok=True)
        whiteout(upper(mount) / name)
    for name, data in new.items():
        (upper(mount) / name).parent.mkdir(exist_ok=True)
        (upper(mount) / name).write_bytes(data)
    changes = await list_changes(mount)
    found = {c.path: c.old_path for c in changes if c.change == "renamed"}
    gone = {c.path for c in changes if c.change == "deleted"} | set(found.values())
    come = {c.path for c in changes if c.change == "added"} | set(found)
    assert (gone, come) == (set(old), set(new))
    return {path: was for path, was in found.items() if was is not None}


async def test_the_same_content_under_the_same_name_first(mount: WorkspaceMount) -> None:
    old, new = {"a/x": b"same\n", "b/y": b"same\n"}, {"c/y": b"same\n", "d/z": b"same\n"}
    assert await renames(mount, old, new) == {"c/y": "b/y", "d/z": "a/x"}


async def test_binary_content_moves_as_it_is(mount: WorkspaceMount) -> None:
    assert await renames(mount, {"a": b"\0" * 100}, {"b": b"\0" * 100}) == {"b": "a"}
    (change,) = await list_changes(mount)
    assert (change.binary, change.insertions, change.old_size) == (True, 0, 100)


async def test_binary_content_that_was_edited_has_not_moved(mount: WorkspaceMount) -> None:
    assert await renames(mount, {"a": b"\0" * 100}, {"b": b"\0" * 99}) == {}


async def test_an_edited_file_is_found_and_another_is_not(mount: WorkspaceMount) -> None:
    edited = LINES.replace(b"line 3\n", b"other\n")
    assert await renames(mount, {"a": LINES}, {"b": edited, "c": b"new\n"}) == {"b": "a"}
    moved = next(c for c in await list_changes(mount) if c.change == "renamed")
    assert (moved.insertions, moved.deletions, moved.old_size, moved.size) == (1, 1, len(LINES), len(edited))
    patch = await unified_patch(mount)
    assert b"similarity index 95%\nrename from a\nrename to b\n" in patch
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "b").read_bytes() == edited


async def test_the_most_similar_pair_wins(mount: WorkspaceMount) -> None:
    near, far = LINES + b"x\n", LINES + b"x" * 40 + b"\n"
    assert await renames(mount, {"a": LINES}, {"far": far, "near": near}) == {"near": "a"}
    assert b"similarity index 98%\n" in await unified_patch(mount)


async def test_empty_files_do_not_move(mount: WorkspaceMount) -> None:
    assert await renames(mount, {"a": b""}, {"b": b""}) == {}
    assert b"rename" not in await unified_patch(mount)


async def test_too_many_pairs_are_not_compared(mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "COMPARED_PAIRS", 1)
    old = {"a": LINES, "b": LINES + b"b\n"}
    assert await renames(mount, old, {"c": LINES + b"c\n"}) == {}


async def test_the_same_content_is_found_among_too_many_pairs(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "COMPARED_PAIRS", 1)
    assert await renames(mount, {"a": LINES, "b": LINES + b"b\n"}, {"c": LINES}) == {"c": "a"}


async def test_what_is_only_added_or_only_deleted_needs_no_git(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **more: object) -> bytes:
        raise AssertionError(arguments)

    monkeypatch.setattr("orchestrator.workspace.changes.tree_pair.git_until", refused)
    (upper(mount) / "a").write_bytes(b"1\n2")
    (upper(mount) / "b").write_bytes(b"")
    assert [(c.path, c.insertions) for c in await list_changes(mount)] == [("a", 2), ("b", 0)]


async def test_without_git_there_is_a_list_all_the_same(mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.workspace.changes.listing.installed", lambda: None)
    (mount.source / "f").write_bytes(b"1\n")
    (upper(mount) / "f").write_bytes(b"2\n")
    (change,) = await list_changes(mount)
    assert (change.change, change.binary, change.insertions) == ("modified", True, 0)
