"""git itself reads what we write."""

import random
from pathlib import Path

import pytest

from orchestrator.workspace.changes.gitbinary import binary_hunks
from tests.orchestrator.workspace.changes.test_export import git


@pytest.mark.parametrize("size", [0, 1, 25, 26, 27, 51, 52, 53, 104, 5000])
def test_any_size_applies_in_both_directions(tmp_path: Path, size: int) -> None:
    before, after = random.Random(1).randbytes(40), random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(before)
    old, new = (git(tmp_path, "hash-object", "--stdin", stdin=data).strip() for data in (before, after))
    header = b"diff --git a/f b/f\nindex %b..%b 100644\n" % (old, new)
    patch = header + binary_hunks(before, after)
    git(tmp_path, "apply", "-", stdin=patch)
    assert (tmp_path / "f").read_bytes() == after
    git(tmp_path, "apply", "-R", "-", stdin=patch)
    assert (tmp_path / "f").read_bytes() == before
