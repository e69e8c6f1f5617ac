"""What applying would do: path by path, before anything is touched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from orchestrator.contract.changes import FileOutcome, OnConflict
from orchestrator.workspace.apply.base_record import Base, Record
from orchestrator.workspace.overlay.diff import Difference
from orchestrator.workspace.path_states import Key, Root, State, entries, opened
from orchestrator.workspace.sandboxed_git import GitError, empty_git_dir, git, installed, scratch

MERGED_BYTES: Final = 8 * 1024**2
"""Larger files are not merged."""
_CHANGED: Final = "the repo's file was changed since the agent first changed it"
_APPEARED: Final = "the repo has a file here that it did not have when the agent first made one"
_VANISHED: Final = "the repo's file is gone since the agent first changed it"
_UNSURE: Final = "the repo's file was changed while the agent worked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One path to be changed.  ``data`` None: the content comes from the agent's own file."""

    path: bytes
    action: Literal["write", "symlink", "delete"]
    before: State | None
    """What the repo has now."""
    after: Key | None
    mode: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``steps`` is what to do when there is no conflict among the ``outcomes``."""

    steps: tuple[Step, ...]
    outcomes: tuple[FileOutcome, ...]

    @property
    def conflicts(self) -> list[FileOutcome]:
        """The paths that stand in the way."""
        return [one for one in self.outcomes if one.outcome == "conflict"]


class Planner:
    """``upper``: where the agent's files are; ``target``: the repo; ``work``: for temporary files."""

    def __init__(self, *, upper: Root, target: Root, record: Record, work: Path, on_conflict: OnConflict) -> None:
        self._upper = upper
        self._target = target
        self._record = record
        self._work = work
        self._on_conflict = on_conflict

    def plan(self, found: Iterator[Difference]) -> Plan:
        """Blocking.  Raises OSError when a side cannot be read."""
        steps: list[Step] = []
        outcomes: list[FileOutcome] = []
        for difference in found:
            outcome, step = self._one(difference)
            outcomes.append(outcome)
            if step is not None:
                steps.append(step)
        return Plan(steps=tuple(steps), outcomes=tuple(_vacated(outcomes, steps, self._target)))

    def _one(self, difference: Difference) -> tuple[FileOutcome, Step | None]:
        path, after = difference.path, difference.after
        outcome = FileOutcome(
            path=os.fsdecode(path),
            change="added" if difference.before is None else "deleted" if after is None else "modified",
            outcome="applied",
        )
        if any(part.lower() == b".git" for part in path.split(b"/")):
            return replace(outcome, outcome="skipped", reason="a git directory is never applied"), None
        if after is not None and after.kind not in {"file", "symlink"}:
            return replace(outcome, outcome="skipped", reason="not a file or link that can be applied"), None
        if after is None and difference.before is not None and difference.before.kind in {"closed", "other"}:
            return replace(outcome, outcome="skipped", reason="not a file or link that can be removed"), None
        agent = self._upper.state(path) if after is not None else None
        if after is not None and (agent is None or agent.key.kind not in {"file", "symlink"}):
            return replace(outcome, outcome="skipped", reason="the agent's file cannot be read"), None
        return self._decided(outcome, path, agent)

    def _decided(self, outcome: FileOutcome, path: bytes, agent: State | None) -> tuple[FileOutcome, Step | None]:
        now = self._target.state(path)
        if now is not None and now.key.kind == "directory":
            now = None  # its files have differences of their own; an empty one makes room
        now_key = now.key if now is not None else None
        wanted = agent.key if agent is not None else None
        if now_key == wanted:
            return replace(outcome, outcome="same"), None
        step = Step(
            path=path,
            action="delete" if agent is None else "symlink" if agent.key.kind == "symlink" else "write",
            before=now,
            after=wanted,
            mode=_mode(agent, now),
        )
        base = self._record.bases.get(path, Base(key=None, unsure=True))
        reason = _reason(base, now_key)
        if reason is None:
            return outcome, step
        match self._on_conflict:
            case "theirs":
                return outcome, step
            case "ours":
                return replace(outcome, outcome="kept", reason=reason), None
            case "merge":
                merged = self._merged(path, base, agent, now)
                if isinstance(merged, bytes):
                    assert base.key is not None
                    return replace(outcome, outcome="merged", reason=reason), _with(step, merged, base.key)
                return replace(outcome, outcome="conflict", reason=f"{reason}; {merged}"), None
            case _:
                return replace(outcome, outcome="conflict", reason=reason), None

    def _merged(self, path: bytes, base: Base, agent: State | None, now: State | None) -> bytes | str:
        """The merged content, or why there is none."""
        if base.unsure:
            return "what the agent began with is not known, so it cannot be merged"
        if agent is None or now is None or base.key is None:
            return "one side has no file, so it cannot be merged"
        if not agent.key.kind == now.key.kind == base.key.kind == "file":
            return "not all sides are files, so it cannot be merged"
        if installed() is None:
            return "git is not installed, so it cannot be merged"
        with scratch(self._work) as place:
            names = [place / name for name in ("repo", "base", "agent")]
            for root, target in ((self._target, names[0]), (self._upper, names[2])):
                with root.parent(path) as (fd, name), opened(fd, name) as source:
                    data = os.read(source, MERGED_BYTES + 1)
                    if len(data) > MERGED_BYTES:
                        return "it is too large to be merged"
                    target.write_bytes(data)
            try:
                names[1].write_bytes(self._record.contents.path(base.key.digest).read_bytes())
            except FileNotFoundError:
                return "what the agent began with is not kept any more, so it cannot be merged"
            try:
                return git(["merge-file", "-p", *map(str, names)], git_dir=empty_git_dir(place), cwd=place)
            except GitError as error:
                return "binary" if "binary" in str(error).lower() else "both sides changed the same lines"


def step_between(path: bytes, target: Root, source: Root) -> Step | None:
    """The step that makes a path of ``target`` what ``source`` has there; None: it is that, or cannot be."""
    old, new = target.state(path), source.state(path)
    kinds = {state.key.kind for state in (old, new) if state is not None}
    if (old and old.key) == (new and new.key) or not kinds <= {"file", "symlink"}:
        return None
    action: Literal["write", "symlink", "delete"] = "delete"
    if new is not None:
        action = "symlink" if new.key.kind == "symlink" else "write"
    return Step(
        path=path, action=action, before=old, after=new.key if new else None, mode=new.mode & 0o777 if new else 0
    )


def _vacated(outcomes: list[FileOutcome], steps: list[Step], target: Root) -> Iterator[FileOutcome]:
    """A directory that makes room for a file must have nothing in it that stays."""
    going = {step.path for step in steps if step.action == "delete"}
    places = {os.fsdecode(step.path): step.path for step in steps if step.action != "delete"}
    for one in outcomes:
        path = places.get(one.path)
        if path is not None and (left := _left_in(target, path, going)) is not None:
            yield replace(one, outcome="conflict", reason=f"a directory is in its place, and {left!r} in it would stay")
        elif path is not None and (blocker := _blocker(target, path, going)) is not None:
            yield replace(one, outcome="conflict", reason=f"the repo has {blocker}, not a directory")
        else:
            yield one


def _left_in(target: Root, path: bytes, going: set[bytes]) -> str | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        with target.parent(path + b"/x") as (fd, _):
            names = entries(fd)
        for name in names:
            inner = path + b"/" + name
            if inner in going:
                continue
            state = target.state(inner)
            if state is None or state.key.kind != "directory":
                return os.fsdecode(inner)
            if (left := _left_in(target, inner, going)) is not None:
                return left
    return None


def _blocker(target: Root, path: bytes, going: set[bytes]) -> str | None:
    at = path.find(b"/")
    while at >= 0:
        state = target.state(path[:at])
        if state is None:
            return None
        if state.key.kind != "directory":
            what = "a symbolic link" if state.key.kind == "symlink" else "a file"
            return None if path[:at] in going else f"{what} at {os.fsdecode(path[:at])!r}"
        at = path.find(b"/", at + 1)
    return None


def _with(step: Step, data: bytes, base: Key) -> Step:
    """The step with merged content; executable is what the side that changed it says."""
    assert step.before is not None
    assert step.after is not None
    executable = step.before.key.executable if step.after.executable == base.executable else step.after.executable
    mode = step.mode if executable == step.after.executable else step.before.mode & 0o777
    key = Key("file", executable, hashlib.sha256(data).hexdigest())
    return replace(step, data=data, after=key, mode=mode)


def _reason(base: Base, now: Key | None) -> str | None:
    if base.unsure:
        return _UNSURE
    if now == base.key:
        return None
    if base.key is None:
        return _APPEARED
    return _VANISHED if now is None else _CHANGED


def _mode(agent: State | None, now: State | None) -> int:
    """Permissions as the repo's file has them, executable as the agent's is; never set-user-id and the like."""
    if agent is None:
        return 0
    if now is None or now.key.kind != "file":
        return agent.mode & 0o755 | 0o600
    mode = now.mode & 0o777
    if agent.key.executable == now.key.executable:
        return mode
    return mode | (mode & 0o444) >> 2 if agent.key.executable else mode & ~0o111
