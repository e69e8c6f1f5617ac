"""Renames: found, never invented, and bounded."""

import hashlib

import pytest

from orchestrator.workspace.changes import renames
from orchestrator.workspace.changes.renames import Candidate, find_renames


def one(path: bytes, data: bytes, *, text: bool = True) -> Candidate:
    return renames.candidate(path, hashlib.sha256(data).digest(), data, text=text)


LINES = b"".join(b"line %d\n" % i for i in range(20))


def test_the_same_content_under_the_same_name_first() -> None:
    found = find_renames(
        [one(b"a/x", b"same\n"), one(b"b/y", b"same\n")], [one(b"c/y", b"same\n"), one(b"d/z", b"same\n")]
    )
    assert found == {b"c/y": (b"b/y", 100), b"d/z": (b"a/x", 100)}


def test_binary_content_moves_only_as_it_is() -> None:
    old = one(b"a", b"\0" * 100, text=False)
    assert find_renames([old], [one(b"b", b"\0" * 100, text=False)]) == {b"b": (b"a", 100)}
    assert find_renames([old], [one(b"b", b"\0" * 99, text=False)]) == {}


def test_an_edited_file_is_found_and_another_is_not() -> None:
    edited = LINES.replace(b"line 3\n", b"other\n")
    assert find_renames([one(b"a", LINES)], [one(b"b", edited), one(b"c", b"new\n")]) == {b"b": (b"a", 95)}


def test_the_most_similar_pair_wins() -> None:
    near, far = LINES + b"x\n", LINES + b"x" * 40 + b"\n"
    assert find_renames([one(b"a", LINES)], [one(b"far", far), one(b"near", near)]) == {b"near": (b"a", 98)}


def test_empty_files_do_not_move() -> None:
    assert find_renames([one(b"a", b"")], [one(b"b", b"")]) == {}


def test_too_many_pairs_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "COMPARED_PAIRS", 1)
    deleted = [one(b"a", LINES), one(b"b", LINES + b"b\n")]
    assert find_renames(deleted, [one(b"c", LINES + b"c\n")]) == {}
    assert find_renames(deleted, [one(b"c", LINES)]) == {b"c": (b"a", 100)}
