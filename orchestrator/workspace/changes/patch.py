"""The chosen changes as one patch, as ``git apply`` takes it: git writes it, here its bounds are kept.

Text and binary content are given in full.  For content that was not loaded (too large, unreadable), or for which there
is no room, there is the line ``Binary files … differ``, at which ``git apply`` refuses the patch rather than leave that
file out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from orchestrator.workspace.changes.listing import Found, is_text
from orchestrator.workspace.changes.tree_pair import ObjectWriter, Section, TreePair, is_bulky
from orchestrator.workspace.overlay.diff import Difference, Side, read_side
from orchestrator.workspace.sandboxed_git import scratch

MAX_PATCH_BYTES: Final = 64 * 1024**2
"""Once a patch has grown to this, the content of the files that follow is left out (with git's marker for it)."""
PATCH_FILE_BYTES: Final = 32 * 1024**2
"""Content of larger files is not in the patch."""
_ESCAPES: Final = {
    0x07: b"a",
    0x08: b"b",
    0x09: b"t",
    0x0A: b"n",
    0x0B: b"v",
    0x0C: b"f",
    0x0D: b"r",
    0x22: b'"',
    0x5C: b"\\",
}


def patch_of(differences: Iterator[Difference], wanted: Mapping[bytes, Found], *, lower: Path, place: Path) -> bytes:
    """The patch of those differences (loaded up to ``PATCH_FILE_BYTES``) that are ``wanted``, by path.

    ``place``: where temporary files may be.  Blocking.  Raises OSError, GitError, StorageError.
    """
    markers: dict[bytes, bytes] = {}
    with scratch(place) as directory, closing(ObjectWriter(directory)) as objects:
        groups = _Groups(objects)
        for difference in differences:
            found = wanted.get(difference.path)
            if found is None:
                continue
            path, origin = difference.path, found.origin
            before, after = _known_to_git(difference.before), _known_to_git(difference.after)
            if origin is not None:
                before = read_side(lower, origin, PATCH_FILE_BYTES)
            if before is not None or after is not None:
                markers[path] = _marker(path, before, after, origin)
                groups.add(path, before, after, origin)
        contents = groups.contents()
    out = bytearray()
    for path in sorted(contents.keys() | markers.keys()):
        content = contents.get(path)
        if content is None or len(out) + len(content) > MAX_PATCH_BYTES:
            content = markers.get(path, b"")
        out += content
    return bytes(out)


class _Groups:
    """Changes by how git is to compare them."""

    def __init__(self, objects: ObjectWriter) -> None:
        self._objects = objects
        self._text, self._bulky, self._moved = TreePair(objects), TreePair(objects), TreePair(objects)
        self._binary = TreePair(objects, text=False)
        self._halved: set[bytes] = set()
        """A symlink in the place of binary content, or the reverse: one goes and the other comes, in a group each."""

    def add(self, path: bytes, before: Side | None, after: Side | None, origin: bytes | None) -> None:
        """Take up a change, if its content was loaded and there is room for it."""
        if any(side is not None and side.data is None for side in (before, after)):
            return
        if not self._objects.has_room(before, after):
            return
        if origin is not None:
            self._moved.add(origin, before, None)
            self._moved.add(path, None, after)
        elif before and after and before.kind != after.kind and is_text(before) != is_text(after):
            self._halved.add(path)
            self._group(before).add(path, before, None)
            self._group(after).add(path, None, after)
        else:
            self._group(before, after).add(path, before, after)

    def contents(self) -> dict[bytes, bytes]:
        """What the patch has for each path, as far as git has come.  Raises GitError, StorageError."""
        sections: dict[bytes, list[Section]] = {}
        for pair in (self._text, self._bulky, self._binary, self._moved):
            for one in pair.patch(MAX_PATCH_BYTES, renames=pair is self._moved):
                sections.setdefault(one.path, []).append(one)
        return {
            path: b"".join(_readable(one) for one in sorted(parts, key=lambda one: one.status != b"D"))
            for path, parts in sections.items()
            if len(parts) == 1 + (path in self._halved)
        }

    def _group(self, *sides: Side | None) -> TreePair:
        if not all(is_text(side) for side in sides):
            return self._binary
        return self._bulky if is_bulky(*sides) else self._text


def _known_to_git(side: Side | None) -> Side | None:
    """git knows no pipes, sockets and devices: to it there is nothing."""
    return None if side is None or side.kind == "other" else side


def _marker(path: bytes, before: Side | None, after: Side | None, origin: bytes | None) -> bytes:
    """What stands for a change whose content is left out."""
    was = origin if origin is not None else path
    out = b"diff --git %b %b\n" % (_quoted(b"a/" + was), _quoted(b"b/" + path))
    if before is None and after is not None:
        out += b"new file mode %o\n" % after.mode
    elif before is not None and after is None:
        out += b"deleted file mode %o\n" % before.mode
    elif before is not None and after is not None and before.mode != after.mode:
        out += b"old mode %o\nnew mode %o\n" % (before.mode, after.mode)
    if origin is not None:
        out += b"rename from %b\nrename to %b\n" % (_quoted(origin), _quoted(path))
    old = _quoted(b"a/" + was) if before else b"/dev/null"
    new = _quoted(b"b/" + path) if after else b"/dev/null"
    return out + b"Binary files %b and %b differ\n" % (old, new)


def _readable(section: Section) -> bytes:
    """The section with names that git can read back.

    It writes the name of a directory that ends with a space bare, and then takes what follows the space for another.
    """
    text, new = section.text, section.path
    old = section.origin if section.origin is not None else new
    if b" /" not in old and b" /" not in new:
        return text
    text = b"\n" + text
    for line, *names in (
        (b"\ndiff --git %b %b", b"a/" + old, b"b/" + new),
        (b"\n--- %b", b"a/" + old),
        (b"\n+++ %b", b"b/" + new),
        (b"\nrename from %b", old),
        (b"\nrename to %b", new),
    ):
        # Content has a sign in front; what could still look like one of these lines comes behind the real one.
        most = 2 if line.startswith(b"\ndiff") else 1
        bare = line % tuple(_quoted(name, bare=True) for name in names)
        text = text.replace(bare, line % tuple(_quoted(name) for name in names), most)
    return text[1:]


def _quoted(path: bytes, *, bare: bool = False) -> bytes:
    """A path as git writes it: in double quotes with C escapes when it holds anything but plain ASCII.

    Also when a directory's name ends with a space, unless ``bare``.
    """
    if all(0x20 <= c < 0x7F and c not in {0x22, 0x5C} for c in path) and (bare or b" /" not in path):
        return path
    return b'"' + b"".join(_escaped(c) for c in path) + b'"'


def _escaped(c: int) -> bytes:
    if c in _ESCAPES:
        return b"\\" + _ESCAPES[c]
    return bytes([c]) if 0x20 <= c < 0x7F else b"\\%03o" % c
