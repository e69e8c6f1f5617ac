"""Line differences of two files: pure, deterministic, and bounded in time whatever the files are.

Common ends are cut off; lines that occur once on both sides anchor the rest (patience); between the anchors Myers'
algorithm finds the shortest script.  Each step is paid from a budget, and where it runs out the remaining region is
given as replaced whole: larger than need be, but never wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FILE_STEPS = 2_000_000
"""About a second or two for one file."""
TOTAL_STEPS = 20_000_000
"""For all the files of one answer together."""
MAX_SCRIPT = 400
"""Between two anchors no shortest script longer than this is looked for (time and memory grow with its square)."""


class Block(NamedTuple):
    """Lines ``a0:a1`` of the old file became lines ``b0:b1`` of the new one; one of the two may be empty."""

    a0: int
    a1: int
    b0: int
    b1: int


@dataclass(slots=True)
class Budget:
    """Steps left."""

    steps: int = TOTAL_STEPS

    def file(self) -> Budget:
        """The part of it that one file may use; what the file used is taken off by ``spent``."""
        return Budget(min(self.steps, FILE_STEPS))

    def take(self, steps: int) -> bool:
        """Pay for work; False when there is not enough left."""
        if steps > self.steps:
            return False
        self.steps -= steps
        return True


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ``\\n``, the last one perhaps without (``\\r`` and friends end no line for git)."""
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    if last:
        lines.append(last)
    return lines


def diff_lines(old: Sequence[bytes], new: Sequence[bytes], budget: Budget) -> list[Block]:
    """What changed, in order; blocks neither touch nor overlap."""
    mine = budget.file()
    before = mine.steps
    numbers: dict[bytes, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    found: list[Block] = []
    regions = [Block(0, len(a), 0, len(b))]
    while regions:
        region = _trim(a, b, regions.pop())
        if region.a0 == region.a1 or region.b0 == region.b1:
            if region.a0 != region.a1 or region.b0 != region.b1:
                found.append(region)
            continue
        if mine.take(region.a1 - region.a0 + region.b1 - region.b0) and (inner := _anchored(a, b, region)):
            regions += inner
        else:
            found += _shortest(a, b, region, mine) or [region]
    budget.take(before - mine.steps)
    return _joined(found)


def _trim(a: list[int], b: list[int], region: Block) -> Block:
    a0, a1, b0, b1 = region
    while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
        a0 += 1
        b0 += 1
    while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
        a1 -= 1
        b1 -= 1
    return Block(a0, a1, b0, b1)


def _anchored(a: list[int], b: list[int], region: Block) -> list[Block]:
    """The regions between the anchors; empty when there is no anchor."""
    a0, a1, b0, b1 = region
    once_a = {line for line, n in Counter(a[a0:a1]).items() if n == 1}
    where_b = {b[j]: j for j in range(b0, b1)}
    once_b = {line for line, n in Counter(b[b0:b1]).items() if n == 1}
    pairs = [(i, where_b[a[i]]) for i in range(a0, a1) if a[i] in once_a and a[i] in once_b]
    out: list[Block] = []
    i, j = a0, b0
    for at_a, at_b in _rising(pairs):
        if (i, j) != (at_a, at_b):
            out.append(Block(i, at_a, j, at_b))
        i, j = at_a + 1, at_b + 1
    if i == a0 and j == b0:
        return []
    out.append(Block(i, a1, j, b1))
    return out


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs in which the second members rise too (patience sorting)."""
    tops: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        previous.append(ends[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            ends.append(index)
        else:
            tops[pile] = j
            ends[pile] = index
    chain: list[tuple[int, int]] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]


def _shortest(a: list[int], b: list[int], region: Block, budget: Budget) -> list[Block]:
    """Myers: the shortest script for the region; empty when it is longer than MAX_SCRIPT or the budget is used up.

    ``reach[k]``: how far along the old side one gets on diagonal ``k`` (old minus new) with ``d`` lines in or out.
    """
    a0, a1, b0, b1 = region
    n, m = a1 - a0, b1 - b0
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for d in range(min(n + m, MAX_SCRIPT) + 1):
        if not budget.take(2 * d + 1):
            return []
        trace.append(dict(reach))
        for k in range(-d, d + 1, 2):
            x = reach[k + 1] if _inserts(reach, k, d) else reach[k - 1] + 1
            start = x
            while x < n and x - k < m and a[a0 + x] == b[b0 + x - k]:
                x += 1
            reach[k] = x
            if not budget.take(x - start):
                return []
            if k == n - m and x >= n:
                return _script(trace, n, m, a0, b0)
    return []


def _inserts(reach: dict[int, int], k: int, d: int) -> bool:
    """Whether the best way onto diagonal ``k`` in step ``d`` takes in a new line (else it drops an old one)."""
    return k == -d or (k != d and reach[k - 1] < reach[k + 1])


def _script(trace: list[dict[int, int]], n: int, m: int, a0: int, b0: int) -> list[Block]:
    out: list[Block] = []
    x, y = n, m
    for d in range(len(trace) - 1, 0, -1):
        reach = trace[d]
        k = x - y
        inserts = _inserts(reach, k, d)
        from_k = k + 1 if inserts else k - 1
        x, y = reach[from_k], reach[from_k] - from_k
        out.append(Block(a0 + x, a0 + x + (not inserts), b0 + y, b0 + y + inserts))
    return out


def _joined(blocks: list[Block]) -> list[Block]:
    """In order, with those that touch made one."""
    out: list[Block] = []
    for block in sorted(blocks):
        if out and out[-1].a1 == block.a0 and out[-1].b1 == block.b0:
            last = out.pop()
            block = Block(last.a0, block.a1, last.b0, block.b1)  # noqa: PLW2901  # the two are one from here on
        out.append(block)
    return out
