"""Which changes a caller means.  Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable

from orchestrator.contract.changes import ChangeSelection
from orchestrator.errors import InvalidRequestError


class Chosen:
    """A ``ChangeSelection`` as bytes.  Raises InvalidRequestError for a path that cannot be one in a workspace."""

    def __init__(self, selection: ChangeSelection) -> None:
        self.ignored = selection.ignored
        self.paths = frozenset(checked_path(path) for path in selection.paths)
        self.all = not selection.paths or b"" in self.paths

    def covers(self, path: bytes) -> bool:
        """Whether the path, or a directory above it, is meant."""
        if self.all or path in self.paths:
            return True
        at = path.rfind(b"/")
        while at >= 0:
            if path[:at] in self.paths:
                return True
            at = path.rfind(b"/", 0, at)
        return False

    def takes(self, path: bytes, origin: bytes | None, *, ignored: bool) -> bool:
        """Whether a change is meant (of a rename either side may be named), with what holds for ignored files."""
        if not (self.covers(path) or (origin is not None and self.covers(origin))):
            return False
        return not ignored or self.ignored or path in self.paths

    def unmatched(self, found: Iterable[bytes]) -> list[bytes]:
        """Named paths that stand for none of the ``found`` ones."""
        left = set(self.paths) - {b""}
        for path in found:
            if not left:
                break
            left = {name for name in left if path != name and not path.startswith(name + b"/")}
        return sorted(left)


def checked_path(text: str) -> bytes:
    """A path in the workspace as bytes, without ``./`` in front and ``/`` behind; empty: all of it."""
    try:
        path = os.fsencode(text)
    except UnicodeEncodeError:
        path = b"\0"
    parts = [part for part in path.split(b"/") if part not in {b"", b"."}]
    if path.startswith(b"/") or b"\0" in path or b".." in parts:
        raise InvalidRequestError(f"{text!r} is no path in the workspace: give it relative to the repo's root")
    return b"/".join(parts)
