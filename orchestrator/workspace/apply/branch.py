"""Applies changes as a commit on a new branch, without touching the work tree or the index of the repo.

git works in the repo here: it is the operator's, and no agent can write to it.  Hooks, filters and signing are off all
the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ConflictError, InvalidRequestError
from orchestrator.workspace.apply.plan import Step
from orchestrator.workspace.changes.ignores import git_dir_of
from orchestrator.workspace.path_states import READ_FLAGS, Root
from orchestrator.workspace.sandboxed_git import GitError, git, scratch

_NOTHING = "0" * 40
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_MAIL = "podmentor@localhost"


def commit_on_branch(
    repo: Path,
    upper: Root,
    steps: Sequence[Step],
    *,
    branch: str,
    message: str | None,
    author: str,
    scratch_parent: Path,
) -> str | None:
    """The new commit: HEAD with the steps made on it; None: that is what HEAD has already, and no branch is made.

    Blocking.

    Raises InvalidRequestError (no git repository, a wrong name), ConflictError (the branch exists), GitError, OSError.
    """
    git_dir = git_dir_of(repo)
    if git_dir is None:
        raise InvalidRequestError(f"{repo} is not the root of a git repository, so there can be no branch")
    with scratch(scratch_parent) as place:

        def run(*arguments: str, stdin: bytes = b"", good: Sequence[int] = (0,)) -> bytes:
            env = {
                "GIT_INDEX_FILE": str(place / "index"),
                "GIT_AUTHOR_NAME": author,
                "GIT_AUTHOR_EMAIL": _MAIL,
                "GIT_COMMITTER_NAME": "podmentor",
                "GIT_COMMITTER_EMAIL": _MAIL,
            }
            return git(arguments, git_dir=git_dir, cwd=place, stdin=stdin, good=good, env=env)

        ref = f"refs/heads/{branch}"
        try:
            run("check-ref-format", "--branch", branch)
        except GitError:
            raise InvalidRequestError(f"{branch!r} cannot be the name of a branch") from None
        if run("rev-parse", "-q", "--verify", ref, good=(0, 1)):
            raise ConflictError(f"the repo has a branch {branch!r} already; take another name")
        head = run("rev-parse", "-q", "--verify", "HEAD^{commit}", good=(0, 1)).decode().strip()
        if head:
            run("read-tree", head)
        lines = [b"0 %b\t%b\0" % (_NOTHING.encode(), step.path) for step in steps if step.action == "delete"]
        for number, step in enumerate(step for step in steps if step.action != "delete"):
            blob = run("hash-object", "-w", "--no-filters", "--", str(_content(step, upper, place / f"b{number}")))
            lines.append(b"%b %b\t%b\0" % (_git_mode(step), blob.strip(), step.path))
        run("update-index", "--replace", "-z", "--index-info", stdin=b"".join(lines))
        tree = run("write-tree").decode().strip()
        if tree == run("rev-parse", "-q", "--verify", f"{head}^{{tree}}" if head else _EMPTY_TREE).decode().strip():
            return None
        parents = ["-p", head] if head else []
        text = message or f"Changes of an agent ({author})"
        commit = run("commit-tree", *parents, "-F", "-", tree, stdin=text.encode() + b"\n").decode().strip()
        run("update-ref", "-m", "podmentor: changes of an agent", ref, commit, _NOTHING)
        return commit


def _git_mode(step: Step) -> bytes:
    if step.action == "symlink":
        return b"120000"
    return b"100755" if step.after is not None and step.after.executable else b"100644"


def _content(step: Step, upper: Root, target: Path) -> Path:
    """The step's content in a file of ours, to be read by git."""
    if step.data is not None:
        target.write_bytes(step.data)
        return target
    with upper.parent(step.path) as (fd, name):
        if step.action == "symlink":
            target.write_bytes(os.readlink(name, dir_fd=fd))
            return target
        source = os.open(name, READ_FLAGS, dir_fd=fd)
        with os.fdopen(source, "rb") as file, target.open("wb") as copy:
            while chunk := file.read(1024**2):
                copy.write(chunk)
    return target
