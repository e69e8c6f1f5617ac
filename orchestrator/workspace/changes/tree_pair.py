"""What git says about two trees of changed files.

The contents of both sides are written as objects into a private, bare repository (see ``sandboxed_git``), so nothing of
the agent's is open to git but these bytes: no configuration, no attributes, no work tree.  ``git diff-tree`` compares
the two.  It is killed when it takes too long, and asked again with nothing to be compared line by line.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from orchestrator.errors import StorageError
from orchestrator.workspace.overlay.diff import Side
from orchestrator.workspace.sandboxed_git import SECONDS, GitTimeoutError, empty_git_dir, git, git_until

DIFF_SECONDS: Final = 10.0
"""Lines chosen to be hard to compare can keep git at it for minutes."""
CONTENT_BYTES: Final = 512 * 1024**2
"""No more content than this is written for one answer."""
_STATISTICS_BYTES: Final = 64 * 1024**2
_BULKY_BYTES: Final = 256 * 1024
_RAW_BYTES: Final = 200
"""What ``--raw`` has for a file beside its path, at most."""
_RENAME_OPTIONS: Final = ("--find-renames=50%", "-l100", "--no-rename-empty")
"""At most 100 times 100 files are compared by their lines; files with the same content are found in any number."""


def is_bulky(*sides: Side | None) -> bool:
    """Whether text of this size should be compared apart from the rest, which it could keep git from."""
    return any(side is not None and side.data is not None and len(side.data) > _BULKY_BYTES for side in sides)


class Statistic(NamedTuple):
    """Lines added and removed at ``path``; None for binary content.  ``origin``: where a renamed file was."""

    path: bytes
    origin: bytes | None
    lines: tuple[int, int] | None


class Section(NamedTuple):
    """What a patch has for one path, from its line ``diff --git`` on."""

    path: bytes
    origin: bytes | None
    status: bytes
    """``D``: what was there goes; another letter for what comes or changes."""
    text: bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: int
    name: bytes
    """The object's, binary."""


class ObjectWriter:
    """A new private repository below ``place``, and the objects in it: they are packed, a file for each takes long."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._left = CONTENT_BYTES
        self._contents: dict[bytes, bytes] = {}
        """SHA-256 of every object by its name."""
        self._pack: BufferedRandom | None = None
        self._count = 0
        """Objects in the pack."""

    @cached_property
    def git_dir(self) -> Path:
        """The repository; it is made when it is needed."""
        return empty_git_dir(self._place)

    @cached_property
    def all_binary(self) -> Path:
        """A file with git's attributes by which no content is compared by its lines."""
        path = self._place / "attributes"
        path.write_bytes(b"* -diff\n")
        return path

    def has_room(self, *sides: Side | None) -> bool:
        """Whether ``CONTENT_BYTES`` allow for these; if so, they are taken off."""
        size = sum(len(side.data) for side in sides if side is not None and side.data is not None)
        if size > self._left:
            return False
        self._left -= size
        return True

    def write(self, kind: Literal["tree", "blob"], data: bytes) -> bytes:
        """The object's binary name.  Raises StorageError for two contents with one name, which takes intent."""
        name = hashlib.sha1(b"%b %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).digest()
        content = hashlib.sha256(data).digest()
        known = self._contents.setdefault(name, content)
        if known is not content:
            if known != content:
                raise StorageError("two different contents have the same SHA-1: git cannot show these changes")
            return name
        if self._pack is None:
            self._pack = (self.git_dir / "objects" / "pack" / f"{len(self._contents)}.pack").open("w+b")
            self._pack.write(b"PACK" + bytes(8))
        self._pack.write(_packed_header(kind, len(data)) + zlib.compress(data, 1))
        self._count += 1
        return name

    def flush(self) -> None:
        """Let git see what was written.  Raises OSError, GitError, StorageError."""
        if self._pack is None:
            return
        with self._pack as pack:
            pack.seek(0)
            pack.write(b"PACK" + struct.pack(">II", 2, self._count))
            pack.seek(0)
            digest = hashlib.file_digest(pack, "sha1").digest()
            pack.write(digest)
        self._pack, self._count = None, 0
        git(["index-pack", pack.name], git_dir=self.git_dir, cwd=self.git_dir)

    def close(self) -> None:
        """Nothing more is written."""
        if self._pack is not None:
            self._pack.close()


def _packed_header(kind: Literal["tree", "blob"], size: int) -> bytes:
    """Type and size as a pack has them: four bits of the size, then seven at a time, the lowest first."""
    byte = (3 if kind == "blob" else 2) << 4 | size & 15
    out = bytearray()
    size >>= 4
    while size:
        out.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    out.append(byte)
    return bytes(out)


class TreePair:
    """The two trees.  ``text`` False: all content is binary to git."""

    def __init__(self, objects: ObjectWriter, *, text: bool = True) -> None:
        self._objects = objects
        self._text = text
        self._before: dict[bytes, _Entry] = {}
        self._after: dict[bytes, _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self._before or self._after)

    def add(self, path: bytes, before: Side | None, after: Side | None) -> None:
        """Put loaded sides (files, symlinks) into the trees; None: nothing."""
        for side, tree in ((before, self._before), (after, self._after)):
            if side is not None:
                assert side.data is not None
                tree[path] = _Entry(side.mode, self._objects.write("blob", side.data))

    def statistics(self, *, renames: bool) -> list[Statistic]:
        """Line counts, with the renames among them if wanted.  Raises GitError, StorageError."""
        if not self:
            return []
        fields = iter(self._diff("--numstat", renames=renames, most=_STATISTICS_BYTES).split(b"\0")[:-1])
        found = []
        for field in fields:
            added, removed, path = field.split(b"\t", 2)
            origin = None if path else next(fields)
            lines = None if added == b"-" else (int(added), int(removed))
            found.append(Statistic(path or next(fields), origin, lines))
        return found

    def patch(self, most: int, *, renames: bool = False) -> Iterator[Section]:
        """The sections of the patch in git's order, as far as they fit into about ``most`` bytes together.

        Raises GitError, StorageError.
        """
        if not self:
            return
        most += sum(len(path) + _RAW_BYTES for tree in (self._before, self._after) for path in tree)
        said = self._diff("--raw", "--patch", "--binary", "--full-index", renames=renames, most=most)
        at, records = 0, []
        while said.startswith(b":", at):
            end = said.index(b"\0", at)
            status = said[at:end].rpartition(b" ")[2]
            paths = []
            for _ in range(2 if status.startswith(b"R") else 1):
                start = end + 1
                end = said.index(b"\0", start)
                paths.append(said[start:end])
            records.append((status, paths))
            at = end + 1
        # A content line begins with one of " +-\\@", binary content has no spaces: this can only be git's own.
        pieces = (b"\n" + said[at + 1 :]).removesuffix(b"\n").split(b"\ndiff --git ")[1:]
        if len(said) > most:
            pieces.pop()  # it is not whole
        texts = iter([b"diff --git " + piece + b"\n" for piece in pieces])
        for status, paths in records:
            halves = list(islice(texts, 2 if status == b"T" else 1))  # a file for a symlink: one goes, one comes
            if len(halves) < (2 if status == b"T" else 1):
                return
            yield Section(paths[-1], paths[0] if len(paths) > 1 else None, status[:1], b"".join(halves))

    def _diff(self, *options: str, renames: bool, most: int) -> bytes:
        trees = [self._tree(entries).hex() for entries in (self._before, self._after)]
        how = _RENAME_OPTIONS if renames else ("--no-renames",)
        try:
            return self._run([*options, *how, *trees], most, text=self._text)
        except GitTimeoutError:
            if not self._text:
                raise
            return self._run([*options, "--no-renames", *trees], most, text=False)

    def _run(self, arguments: list[str], most: int, *, text: bool) -> bytes:
        self._objects.flush()
        attributes = "/dev/null" if text else self._objects.all_binary
        return git_until(
            ["diff-tree", "-r", "-z", "--no-textconv", "--no-ext-diff", *arguments],
            git_dir=self._objects.git_dir,
            settings=(f"core.attributesFile={attributes}", "core.quotePath=true"),
            most=most,
            seconds=DIFF_SECONDS if text else SECONDS,
        )

    def _tree(self, entries: Mapping[bytes, _Entry]) -> bytes:
        """Write a tree object with all below it."""
        rows: dict[bytes, _Entry] = {}
        below: dict[bytes, dict[bytes, _Entry]] = {}
        for path, entry in entries.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(name, {})[rest] = entry
            else:
                rows[name] = entry
        for name, inner in below.items():
            rows[name + b"/"] = _Entry(0o40000, self._tree(inner))  # with the slash git sorts directories
        data = b"".join(
            b"%o %b\0%b" % (entry.mode, name.removesuffix(b"/"), entry.name) for name, entry in sorted(rows.items())
        )
        return self._objects.write("tree", data)
