"""The commits that an agent made in its overlay, shown and exported without ever running git in its repository.

The agent's part of ``.git`` is read as data: objects and packs are copied into a private repository, refs are read by
us.  Its configuration, hooks and alternates are left where they are.  The repo's own objects are lent to the private
one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orchestrator.contract.changes import CommitInfo, CommitsForm
from orchestrator.errors import StorageError
from orchestrator.workspace.changes.ignores import git_dir_of
from orchestrator.workspace.overlay.diff import is_opaque, read_regular
from orchestrator.workspace.path_states import DIR_FLAGS
from orchestrator.workspace.sandboxed_git import GitError, empty_git_dir, git, scratch

MAX_COMMITS: Final = 1000
"""Older ones are not listed."""
OBJECT_BYTES: Final = 512 * 1024**2
"""More than this is not copied."""
_REFS_BYTES: Final = 4 * 1024**2
_NAME: Final = re.compile(rb"[0-9a-f]{40}\Z")
_LOOSE: Final = re.compile(rb"[0-9a-f]{38}\Z")
_FANOUT: Final = re.compile(rb"[0-9a-f]{2}\Z")
_PACK: Final = re.compile(rb"pack-[0-9a-f]{40}\.(pack|idx)\Z")
_FORMAT_PATCH: Final = ("format-patch", "--stdout", "--binary", "--full-index", "--root", "-1")
_FORMAT: Final = "%H%x00%P%x00%an <%ae>%x00%aI%x00%s%x00"


def listed(upper: Path, lower: Path) -> list[CommitInfo]:
    """Newest first.  Blocking.  Raises OSError, GitError, StorageError."""
    with _repository(upper, lower) as repository:
        if repository is None:
            return []
        private, new, old = repository
        said = git(
            ["rev-list", "--no-commit-header", f"--max-count={MAX_COMMITS}", f"--format={_FORMAT}", "--stdin"],
            git_dir=private,
            cwd=private,
            stdin=_revisions(new, old),
        )
    ends: dict[str, list[str]] = {}
    for ref, tip in new.items():
        ends.setdefault(tip.decode(), []).append(os.fsdecode(ref))
    fields = said.decode("utf-8", "replace").split("\0")
    out = []
    for at in range(0, len(fields) - 5, 5):
        commit, parents, author, authored_at, subject = fields[at : at + 5]
        commit = commit.strip()
        out.append(
            CommitInfo(
                commit=commit,
                parents=tuple(parents.split()),
                author=author,
                authored_at=authored_at,
                subject=subject,
                refs=tuple(sorted(ends.get(commit, ()))),
            )
        )
    return out


def exported(upper: Path, lower: Path, form: CommitsForm) -> bytes:
    """As a bundle, or as patches in the form that ``git am`` takes; empty when there are none.  Blocking."""
    with _repository(upper, lower) as repository:
        if repository is None:
            return b""
        private, new, old = repository
        if form == "patches":
            excluded = b"".join(b"^%b\n" % commit for commit in sorted(old))
            tip = new.get(b"HEAD") or new[min(new)]
            order = git(
                ["rev-list", "--reverse", "--no-merges", f"--max-count={MAX_COMMITS}", "--stdin"],
                git_dir=private,
                cwd=private,
                stdin=tip + b"\n" + excluded,
            )
            return b"".join(
                git(
                    [*_FORMAT_PATCH, commit],
                    git_dir=private,
                    cwd=private,
                )
                for commit in order.split()
            )
        names = []
        for ref, commit in sorted(new.items()):
            name = ref if ref != b"HEAD" else b"refs/heads/HEAD"
            with suppress(GitError):  # a name that git itself would not take
                git(["update-ref", name, commit], git_dir=private, cwd=private)
                names.append(name)
        excluded = b"".join(b"^%b\n" % commit for commit in sorted(old))
        if not git(
            ["rev-list", "--max-count=1", "--stdin"],
            git_dir=private,
            cwd=private,
            stdin=b"\n".join(names) + b"\n" + excluded,
        ):
            return b""
        return git(
            ["bundle", "create", "-q", "-", "--stdin"],
            git_dir=private,
            cwd=private,
            stdin=b"\n".join(names) + b"\n" + excluded,
        )


def _revisions(new: dict[bytes, bytes], old: set[bytes]) -> bytes:
    return b"".join(b"%b\n" % c for c in sorted(set(new.values()))) + b"".join(b"^%b\n" % c for c in sorted(old))


@contextmanager
def _repository(upper: Path, lower: Path) -> Iterator[tuple[Path, dict[bytes, bytes], set[bytes]] | None]:
    """A private repository with the agent's objects, its refs, and the repo's own tips; None: no commits were made."""
    try:
        above = os.open(upper / ".git", DIR_FLAGS)
    except OSError:
        yield None
        return
    try:
        own = git_dir_of(lower) if not is_opaque(above) else None
        old = set(_own_refs(own).values()) if own else set()
        new = {ref: commit for ref, commit in _agent_refs(above, own).items() if commit not in old}
        if not new:
            yield None
            return
        with scratch(upper.parent) as place:
            private = empty_git_dir(place)
            _copy_objects(above, private / "objects")
            if own is not None and (own / "objects").is_dir():
                lent = os.fsencode((own / "objects").resolve())
                (private / "objects" / "info" / "alternates").write_bytes(lent + b"\n")
            new = {ref: commit for ref, commit in new.items() if _is_commit(private, commit)}
            old = {commit for commit in old if _is_commit(private, commit)} if new else old
            yield (private, new, old) if new else None
    finally:
        os.close(above)


def _is_commit(private: Path, name: bytes) -> bool:
    try:
        return git(["cat-file", "-t", name], git_dir=private, cwd=private).strip() == b"commit"
    except GitError:
        return False


def _agent_refs(above: int, own: Path | None) -> dict[bytes, bytes]:
    """Branches and HEAD in the agent's part of ``.git``; nothing here is followed but directories."""
    refs = _refs_in(above)
    head = read_regular(above, b"HEAD", 1000)
    if head is None and own is not None:
        with suppress(OSError):
            head = (own / "HEAD").read_bytes()  # not touched by the agent: it shows through
    head = (head or b"").strip()
    if _NAME.match(head):
        refs[b"HEAD"] = head
    elif head.startswith(b"ref: ") and head[5:] in refs:
        refs[b"HEAD"] = refs[head[5:]]
    return {ref: commit for ref, commit in refs.items() if ref == b"HEAD" or ref.startswith(b"refs/heads/")}


def _refs_in(git_dir: int) -> dict[bytes, bytes]:
    """The refs of an opened ``.git``, loose ones before packed ones."""
    refs = _packed(read_regular(git_dir, b"packed-refs", _REFS_BYTES) or b"")
    with suppress(OSError):
        fd = os.open(b"refs", DIR_FLAGS, dir_fd=git_dir)
        try:
            refs |= _loose_refs(fd, b"refs/", 0)
        finally:
            os.close(fd)
    return refs


def _own_refs(git_dir: Path) -> dict[bytes, bytes]:
    fd = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        refs = _refs_in(fd)
        head = (read_regular(fd, b"HEAD", 1000) or b"").strip()
        return refs | ({b"HEAD": head} if _NAME.match(head) else {})
    finally:
        os.close(fd)


def _loose_refs(directory: int, prefix: bytes, depth: int) -> dict[bytes, bytes]:
    out: dict[bytes, bytes] = {}
    for entry in os.listdir(directory):
        name = os.fsencode(entry)
        value = (read_regular(directory, name, 100) or b"").strip()
        if _NAME.match(value):
            out[prefix + name] = value
        elif depth < 10:
            with suppress(OSError):
                fd = os.open(name, DIR_FLAGS, dir_fd=directory)
                try:
                    out |= _loose_refs(fd, prefix + name + b"/", depth + 1)
                finally:
                    os.close(fd)
    return out


def _packed(text: bytes) -> dict[bytes, bytes]:
    out = {}
    for line in text.splitlines():
        commit, _, ref = line.partition(b" ")
        if _NAME.match(commit) and ref.startswith(b"refs/"):
            out[ref] = commit
    return out


def _copy_objects(above: int, target: Path) -> None:
    """Regular files with the names of objects and packs, and nothing else."""
    left = OBJECT_BYTES
    with suppress(FileNotFoundError):
        objects = os.open(b"objects", DIR_FLAGS, dir_fd=above)
        try:
            for entry in os.listdir(objects):  # noqa: PTH208  # a descriptor
                name = os.fsencode(entry)
                wanted = _LOOSE if _FANOUT.match(name) else _PACK if name == b"pack" else None
                if wanted is None:
                    continue
                with suppress(NotADirectoryError, PermissionError):
                    inner = os.open(name, DIR_FLAGS, dir_fd=objects)
                    try:
                        left = _copy_named(inner, wanted, target / entry, left)
                    finally:
                        os.close(inner)
        finally:
            os.close(objects)


def _copy_named(directory: int, wanted: re.Pattern[bytes], target: Path, left: int) -> int:
    target.mkdir(exist_ok=True)
    for entry in os.listdir(directory):
        name = os.fsencode(entry)
        st = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not wanted.match(name) or not stat.S_ISREG(st.st_mode):
            continue
        left -= st.st_size
        if left < 0 or (data := read_regular(directory, name, st.st_size)) is None:
            raise StorageError(f"the agent's git objects are more than {OBJECT_BYTES // 1024**2} MiB, or unreadable")
        (target / entry).write_bytes(data)
    return left
