"""Which of the changed paths git would ignore.

git itself decides, but in a place of ours: the ``.gitignore`` files that matter (as the agent sees them) and the repo's
``info/exclude`` are copied there, and git is given the paths.  A path that the repo's index has is never ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from orchestrator.errors import StorageError
from orchestrator.workspace.overlay.diff import Whiteout, is_opaque, read_regular
from orchestrator.workspace.path_states import DIR_FLAGS
from orchestrator.workspace.sandboxed_git import GitError, empty_git_dir, git, installed, scratch

RULES_BYTES: Final = 1024**2
"""A larger ``.gitignore`` is not read."""
_RULES: Final = b".gitignore"


def ignored_paths(
    paths: Iterable[bytes], *, upper: Path, lower: Path, whiteout: Whiteout, existing: Iterable[bytes] = ()
) -> frozenset[bytes]:
    """Those of ``paths`` that are ignored; ``existing``: those among them that the repo has.  Blocking.

    Without git nothing counts as ignored.  Raises OSError when a directory cannot be opened.
    """
    wanted = list(paths)
    if not wanted or installed() is None:
        return frozenset()
    with scratch(upper.parent) as place, MergedView(upper, lower, whiteout) as view:
        tree = place / "tree"
        tree.mkdir()
        private = empty_git_dir(place)
        if not _copy_rules(wanted, view, tree, private, lower):
            return frozenset()
        try:
            # "./" in front, so that no path can be taken for one of git's magic words
            said = git(
                ["check-ignore", "--no-index", "--stdin", "-z"],
                git_dir=private,
                work_tree=tree,
                cwd=tree,
                stdin=b"".join(b"./" + path + b"\0" for path in wanted),
                good=(0, 1),
            )
        except (GitError, StorageError):
            return frozenset()
        found = frozenset(path.removeprefix(b"./") for path in said.split(b"\0") if path)
        doubtful = found & frozenset(existing)
        return found - (doubtful & tracked(lower, private, doubtful)) if doubtful else found


def _copy_rules(paths: list[bytes], view: MergedView, tree: Path, private: Path, lower: Path) -> bool:
    """Copy what rules there are; whether there are any."""
    some = False
    for directory in sorted({parent for path in paths for parent in _parents(path)}):
        prefix = directory + b"/" if directory else b""
        rules = view.read(prefix + _RULES, RULES_BYTES)
        if rules is None:
            continue
        place = Path(os.fsdecode(os.path.join(os.fsencode(tree), directory)))  # noqa: PTH118  # bytes
        place.mkdir(parents=True, exist_ok=True)
        (place / ".gitignore").write_bytes(rules)
        some = True
    if (git_dir := git_dir_of(lower)) is not None:
        with suppress(OSError):
            exclude = (git_dir / "info" / "exclude").read_bytes()
            (private / "info").mkdir()
            (private / "info" / "exclude").write_bytes(exclude)
            some = True
    return some


def _parents(path: bytes) -> Iterable[bytes]:
    yield b""
    at = path.find(b"/")
    while at >= 0:
        yield path[:at]
        at = path.find(b"/", at + 1)


def git_dir_of(repo: Path) -> Path | None:
    """The repo's own git directory, also where ``.git`` is a file that names it."""
    place = repo / ".git"
    if place.is_dir():
        return place
    try:
        text = place.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    if not text.startswith("gitdir: "):
        return None
    named = (repo / text.removeprefix("gitdir: ").rstrip("\n")).resolve()
    return named if named.is_dir() else None


def tracked(repo: Path, private: Path, otherwise: frozenset[bytes]) -> frozenset[bytes]:
    """The paths in the repo's index; ``otherwise`` when there is an index that cannot be read."""
    git_dir = git_dir_of(repo)
    if git_dir is None or not (git_dir / "index").exists():
        return frozenset()
    try:
        said = git(["ls-files", "-z"], git_dir=private, cwd=private, env={"GIT_INDEX_FILE": str(git_dir / "index")})
    except GitError:
        return otherwise
    return frozenset(said.split(b"\0"))


class MergedView:
    """Never follows a symlink, never leaves the two directories.  Use as a context manager.

    Raises OSError when one of the two cannot be opened.
    """

    def __init__(self, upper: Path, lower: Path, whiteout: Whiteout) -> None:
        self._roots = (upper, lower)
        self._whiteout = whiteout
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            found = []
            for root in self._roots:
                fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                found.append(fd)
            self._above, self._below = found
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, path: bytes, limit: int) -> bytes | None:
        """The content of a regular file of at most ``limit`` bytes; None when there is none."""
        *parents, name = path.split(b"/")
        with ExitStack() as stack:
            above: int | None = self._above
            below: int | None = self._below
            for part in parents:
                above, below = self._enter(stack, above, below, part)
                if above is None and below is None:
                    return None
            if above is not None:
                st = _stat(above, name)
                if st is not None:
                    return None if self._whiteout(st) else read_regular(above, name, limit)
            return read_regular(below, name, limit) if below is not None else None

    def _enter(
        self, stack: ExitStack, above: int | None, below: int | None, part: bytes
    ) -> tuple[int | None, int | None]:
        st = _stat(above, part) if above is not None else None
        if st is not None and (self._whiteout(st) or not stat.S_ISDIR(st.st_mode)):
            return None, None
        next_above = _open(stack, above, part) if above is not None and st is not None else None
        if st is not None and (next_above is None or is_opaque(next_above)):
            return next_above, None
        return next_above, _open(stack, below, part) if below is not None else None


def _stat(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None


def _open(stack: ExitStack, directory: int, name: bytes) -> int | None:
    with suppress(OSError):
        fd = os.open(name, DIR_FLAGS, dir_fd=directory)
        stack.callback(os.close, fd)
        return fd
    return None
