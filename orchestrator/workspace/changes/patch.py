"""One difference in git's patch format, as ``git apply`` takes it.  Pure.

Text and binary content are given in full.  For content that was not loaded (too large, unreadable) there is the line
``Binary files … differ``, at which ``git apply`` refuses the patch rather than leave that file out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.workspace.changes.gitbinary import binary_hunks
from orchestrator.workspace.changes.linediff import Block, Budget, diff_lines, split_lines
from orchestrator.workspace.overlay.diff import LARGE_BYTES, Difference, Side

CONTEXT = 3
"""Unchanged lines around a change."""
_SNIFF = 8000
"""git looks for a NUL in so many first bytes."""
_NOTHING = b"0" * 40
_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The patch of one path (``text`` empty: git cannot express it) and its line counts."""

    text: bytes
    binary: bool
    insertions: int
    deletions: int


def is_text(side: Side | None) -> bool:
    """Whether the side can be shown as lines (nothing at all can)."""
    if side is None or side.kind == "symlink":
        return True
    data = side.data
    if data is None or len(data) > LARGE_BYTES or b"\0" in data[:_SNIFF]:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a renamed file comes from; ``similarity``: how much of it is the same, in percent."""

    path: bytes
    similarity: int


def file_patch(
    difference: Difference, budget: Budget, origin: Origin | None = None, *, with_binary: bool = False
) -> FilePatch:
    """The patch of one path.  A change of kind (file to link, say) is a deletion and an addition, as git has it.

    ``origin``: the path was renamed, and ``before`` is what was there.  ``with_binary``: give binary content too.
    """
    before, after = _seen(difference.before), _seen(difference.after)
    if before is not None and after is not None and before.kind != after.kind:
        halves = [
            _patch(difference.path, before, None, budget, with_binary=with_binary),
            _patch(difference.path, None, after, budget, with_binary=with_binary),
        ]
    elif before is None and after is None:
        halves = []
    else:
        halves = [_patch(difference.path, before, after, budget, origin, with_binary=with_binary)]
    return FilePatch(
        text=b"".join(half.text for half in halves),
        binary=not (is_text(difference.before) and is_text(difference.after)),
        insertions=sum(half.insertions for half in halves),
        deletions=sum(half.deletions for half in halves),
    )


def marker(difference: Difference, origin: Origin | None = None) -> bytes:
    """The patch without the content, for when there is no room for it."""
    before, after = _seen(difference.before), _seen(difference.after)
    if before is None and after is None:
        return b""
    was = origin.path if origin else difference.path
    return _header(difference.path, before, after, origin) + _differ(was, difference.path, before, after)


def quote(path: bytes) -> bytes:
    """A path as git writes it: in double quotes with C escapes when it holds anything but plain ASCII.

    Also when a directory's name ends with a space: git writes such a path bare and then cannot read it back.
    """
    if b" /" not in path and all(0x20 <= c < 0x7F and c not in {0x22, 0x5C} for c in path):
        return path
    return b'"' + b"".join(_escaped(c) for c in path) + b'"'


def _escaped(c: int) -> bytes:
    if c in _ESCAPES:
        return b"\\" + _ESCAPES[c]
    return bytes([c]) if 0x20 <= c < 0x7F else b"\\%03o" % c


def _seen(side: Side | None) -> Side | None:
    """git knows no pipes, sockets and devices: to it there is nothing."""
    return None if side is None or side.kind == "other" else side


def _patch(
    path: bytes,
    before: Side | None,
    after: Side | None,
    budget: Budget,
    origin: Origin | None = None,
    *,
    with_binary: bool,
) -> FilePatch:
    was = origin.path if origin else path
    header = _header(path, before, after, origin)
    if not (is_text(before) and is_text(after)):
        body = _binary(was, path, before, after, with_content=with_binary)
        return FilePatch(text=header + body, binary=True, insertions=0, deletions=0)
    old = split_lines((before.data if before else None) or b"")
    new = split_lines((after.data if after else None) or b"")
    blocks = diff_lines(old, new, budget)
    text = bytearray(header)
    if blocks:
        text += b"--- " + _named(b"a/" + was if before else None)
        text += b"+++ " + _named(b"b/" + path if after else None)
        for line in _hunks(old, new, blocks):
            text += line
    return FilePatch(
        text=bytes(text),
        binary=False,
        insertions=sum(block.b1 - block.b0 for block in blocks),
        deletions=sum(block.a1 - block.a0 for block in blocks),
    )


def _binary(was: bytes, path: bytes, before: Side | None, after: Side | None, *, with_content: bool) -> bytes:
    old, new = (b"" if side is None else side.data for side in (before, after))
    if old is not None and old == new:
        return b""  # only the mode, or the name
    if old is None or new is None or not with_content:
        return _differ(was, path, before, after)
    return binary_hunks(old, new)


def _header(path: bytes, before: Side | None, after: Side | None, origin: Origin | None = None) -> bytes:
    was = origin.path if origin else path
    out = b"diff --git %b %b\n" % (quote(b"a/" + was), quote(b"b/" + path))
    same_mode = b""
    if before is None and after is not None:
        out += b"new file mode %o\n" % after.mode
    elif before is not None and after is None:
        out += b"deleted file mode %o\n" % before.mode
    elif before is not None and after is not None:
        if before.mode != after.mode:
            out += b"old mode %o\nnew mode %o\n" % (before.mode, after.mode)
        else:
            same_mode = b" %o" % after.mode
    if origin:
        out += b"similarity index %d%%\n" % origin.similarity
        out += b"rename from %b\nrename to %b\n" % (quote(was), quote(path))
    old, new = blob_name(before), blob_name(after)
    if old is not None and new is not None and old != new:
        out += b"index %b..%b%b\n" % (old, new, same_mode)
    return out


def blob_name(side: Side | None) -> bytes | None:
    """git's name of the content, with which ``git apply --3way`` finds it; None when it was not read."""
    if side is None:
        return _NOTHING
    if side.data is None:
        return None
    digest = hashlib.sha1(b"blob %d\0" % len(side.data), usedforsecurity=False)
    digest.update(side.data)
    return digest.hexdigest().encode()


def _named(path: bytes | None) -> bytes:
    """The name in a ``---`` or ``+++`` line; a tab ends one with spaces in it, or a time stamp would be looked for."""
    if path is None:
        return b"/dev/null\n"
    return quote(path) + (b"\t\n" if b" " in path and quote(path) == path else b"\n")


def _differ(was: bytes, path: bytes, before: Side | None, after: Side | None) -> bytes:
    old = quote(b"a/" + was) if before else b"/dev/null"
    new = quote(b"b/" + path) if after else b"/dev/null"
    return b"Binary files %b and %b differ\n" % (old, new)


def _hunks(old: Sequence[bytes], new: Sequence[bytes], blocks: list[Block]) -> Iterator[bytes]:
    for group in _groups(blocks):
        first, last = group[0], group[-1]
        lead = min(CONTEXT, first.a0)
        a0, b0 = first.a0 - lead, first.b0 - lead
        trail = min(CONTEXT, len(old) - last.a1)
        a1, b1 = last.a1 + trail, last.b1 + trail
        yield b"@@ -%b +%b @@\n" % (_range(a0, a1), _range(b0, b1))
        at = a0
        for block in group:
            yield from _lines(b" ", old[at : block.a0])
            yield from _lines(b"-", old[block.a0 : block.a1])
            yield from _lines(b"+", new[block.b0 : block.b1])
            at = block.a1
        yield from _lines(b" ", old[at:a1])


def _groups(blocks: list[Block]) -> Iterator[list[Block]]:
    """Blocks that share a hunk: those whose contexts would touch."""
    group = blocks[:1]
    for block, following in pairwise(blocks):
        if following.a0 - block.a1 > 2 * CONTEXT:
            yield group
            group = []
        group.append(following)
    yield group


def _range(start: int, end: int) -> bytes:
    count = end - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _lines(sign: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield sign + line
        if not line.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"
