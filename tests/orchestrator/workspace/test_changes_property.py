"""Random trees and random edits: git applies the patch and arrives at what the agent has."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.contract.changes import ChangeSelection, FileChange
from orchestrator.contract.sandbox import WorkspaceMount
from tests.orchestrator.workspace.overlay import list_changes, unified_patch
from tests.orchestrator.workspace.trees import (
    File,
    Link,
    Tree,
    make,
    make_upper,
    paths,
    read,
    without_empty,
)

NAMES = st.sampled_from(
    [
        b"a",
        b"b",
        b"c.py",
        b"with space",
        b"caf\xc3\xa9",
        b"\xff\xfe",
        b'qu"ote',
        b"back\\slash",
        b"new\nline",
        b"tab\t",
        b"-dash",
        b" lead",
        b"trail ",
        b"A",
        b".gitignore",
        b"a b\tc",
    ]
)
LINES = st.sampled_from(
    [b"one\n", b"two\n", b"three\n", b"\n", b"}\n", b"cr\r\n", b"\xc3\xa9\n", b"-- x\n", b"+\n", b"\\\n"]
)
TEXTS = st.builds(
    lambda lines, end: b"".join(lines) + end,
    st.lists(LINES, max_size=12),
    st.sampled_from([b"", b"end", b"\r", b"\0\xff", bytes(range(256))]),
)
FILES = st.builds(File, TEXTS, st.booleans())
# No link that can form a loop: git apply itself gives up on a directory that takes the place of such a link.
LINKS = st.builds(Link, st.sampled_from([b"nowhere", b"../../up", b"/etc/passwd", b"no\nwhere", b"\xfe"]))
LEAVES = st.one_of(FILES, FILES, LINKS)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(LEAVES, inner), max_size=4),
    max_leaves=12,
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree, and the same after some edits (so that most of it is common)."""
    old = without_empty(draw(TREES))  # git cannot remove a directory that it does not know of
    return old, draw(edited(old))


@st.composite
def edited(draw: st.DrawFn, old: Tree) -> Tree:
    new: Tree = {}
    for name, node in old.items():
        match draw(st.sampled_from(["keep", "keep", "edit", "replace", "delete"])):
            case "keep":
                new[name] = node
            case "edit" if isinstance(node, dict):
                new[name] = draw(edited(node))
            case "edit" if isinstance(node, File):
                lines = node.data.splitlines(keepends=True)
                at = draw(st.integers(0, len(lines)))
                new[name] = File(b"".join([*lines[:at], draw(LINES), *lines[at + 1 :]]), draw(st.booleans()))
            case "edit" | "replace":
                new[name] = draw(st.one_of(LEAVES, TREES))
            case _:
                continue
    return new | draw(st.dictionaries(NAMES, LEAVES, max_size=1))


def apply(patch: bytes, directory: Path) -> None:
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": "/",
    }
    environment["GIT_DIR"] = "/nonexistent"
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=directory,
        input=patch,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, (done.stderr, patch)


def expected(old: Tree, new: Tree) -> dict[bytes, str]:
    before, after = paths(old), paths(new)
    out: dict[bytes, str] = dict.fromkeys(before.keys() - after.keys(), "deleted")
    out |= dict.fromkeys(after.keys() - before.keys(), "added")
    return out | {path: "modified" for path in before.keys() & after.keys() if before[path] != after[path]}


def by_path(found: list[FileChange]) -> dict[bytes, str]:
    """Renames reported as what they consist of, so that any choice of pairs is right."""
    out = {}
    for change in found:
        kind: str = {"renamed": "added", "mode": "modified"}.get(change.change, change.change)
        out[os.fsencode(change.path)] = kind
        if change.old_path is not None:
            out[os.fsencode(change.old_path)] = "deleted"
    return out


@settings(
    database=None,
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(edits(), st.integers(0, 2**32))
def test_git_applies_the_patch_and_gets_what_the_agent_has(trees: tuple[Tree, Tree], seed: int) -> None:
    old, new = trees
    with tempfile.TemporaryDirectory() as top:
        lower, upper, copy = (Path(top, name) for name in ("lower", "upper", "copy"))
        for directory, tree in ((lower, old), (upper, {}), (copy, old)):
            directory.mkdir()
            make(directory, tree)
        make_upper(upper, old, new, random.Random(seed))
        mount = WorkspaceMount(mode="overlay", source=lower, upper=upper, work=upper)

        async def both() -> tuple[list[FileChange], bytes]:
            return (
                await list_changes(mount),
                await unified_patch(mount, ChangeSelection(ignored=True)),
            )

        found, patch = asyncio.run(both())
        assert by_path(found) == expected(old, new)
        assert [c.path for c in found] == sorted(c.path for c in found)
        assert bool(patch) == bool(found)
        if patch:
            apply(patch, copy)
        assert read(copy) == without_empty(new)
        added = sum(line.startswith(b"+") and not line.startswith(b"+++ ") for line in patch.split(b"\n"))
        assert sum(c.insertions for c in found) == added
