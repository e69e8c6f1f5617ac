"""Line differences: always right, shortest where it is affordable, and never slow."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.workspace.changes.linediff import Block, Budget, diff_lines, split_lines

FEW = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"}\n", b"\n"]), max_size=14)


def rebuilt(old: list[bytes], new: list[bytes], blocks: list[Block]) -> list[bytes]:
    """The new file, made of the old one and the blocks' new lines."""
    out: list[bytes] = []
    at = 0
    for block in blocks:
        out += old[at : block.a0] + new[block.b0 : block.b1]
        at = block.a1
    return out + old[at:]


def shortest(old: list[bytes], new: list[bytes]) -> int:
    @cache
    def steps(i: int, j: int) -> int:
        if i == len(old) or j == len(new):
            return len(old) - i + len(new) - j
        if old[i] == new[j]:
            return steps(i + 1, j + 1)
        return 1 + min(steps(i + 1, j), steps(i, j + 1))

    return steps(0, 0)


def length(blocks: list[Block]) -> int:
    return sum(b.a1 - b.a0 + b.b1 - b.b0 for b in blocks)


def check(old: list[bytes], new: list[bytes], budget: Budget | None = None) -> list[Block]:
    blocks = diff_lines(old, new, budget or Budget())
    assert rebuilt(old, new, blocks) == new
    assert all(x.a1 < y.a0 or x.b1 < y.b0 for x, y in pairwise(blocks))
    assert all(x.a1 - x.a0 or x.b1 - x.b0 for x in blocks)
    return blocks


@settings(database=None, max_examples=400)
@given(FEW, FEW)
def test_blocks_turn_the_old_file_into_the_new_one(old: list[bytes], new: list[bytes]) -> None:
    check(old, new)


@settings(database=None, max_examples=200)
@given(
    st.lists(st.sampled_from([b"a\n", b"b\n"]), min_size=8, max_size=16),
    st.lists(st.sampled_from([b"a\n", b"b\n"]), min_size=8, max_size=16),
)
def test_without_anchors_the_script_is_the_shortest(old: list[bytes], new: list[bytes]) -> None:
    trimmed_old, trimmed_new = [*old, b"x\n"], [b"y\n", *new]
    if any(old.count(line) == 1 == new.count(line) for line in old):
        return
    assert length(check(trimmed_old, trimmed_new)) == shortest(trimmed_old, trimmed_new)


@settings(database=None, max_examples=200)
@given(FEW, FEW, st.integers(min_value=0, max_value=30))
def test_a_used_up_budget_still_gives_a_right_answer(old: list[bytes], new: list[bytes], steps: int) -> None:
    budget = Budget(steps)
    check(old, new, budget)
    assert budget.steps >= 0


def test_one_changed_line_in_a_long_file_is_one_block() -> None:
    old = [b"%d\n" % i for i in range(50_000)]
    new = [*old[:25_000], b"new\n", *old[25_001:]]
    assert check(old, new) == [Block(25_000, 25_001, 25_000, 25_001)]


def test_a_moved_function_keeps_the_rest_in_place() -> None:
    old = split_lines(b"def a():\n    pass\n\ndef b():\n    pass\n\ndef c():\n    pass\n")
    new = split_lines(b"def b():\n    pass\n\ndef c():\n    pass\n\ndef a():\n    pass\n")
    assert length(check(old, new)) == 6


def test_hostile_files_stay_within_the_budget() -> None:
    """Tens of thousands of lines with no anchor and no common part worth finding."""
    old = [b"%d\n" % (i * 7 % 5) for i in range(40_000)]
    new = [b"%d\n" % (i * i % 7) for i in range(40_000)]
    budget = Budget(100_000)
    check(old, new, budget)
    assert 0 <= budget.steps < 100_000


def test_lines_end_at_newlines_alone() -> None:
    assert split_lines(b"a\r\nb\x0cc\rd\n\ne") == [b"a\r\n", b"b\x0cc\rd\n", b"\n", b"e"]
    assert split_lines(b"") == []
    assert split_lines(b"\n") == [b"\n"]
