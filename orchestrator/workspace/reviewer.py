"""One workspace, looked at in order to change something: the blocking work behind ``Reviews``."""

from __future__ import annotations

import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from orchestrator.contract.changes import ApplyRequest, ApplyResult, ChangeSelection
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import ConflictError, InvalidRequestError, StorageError
from orchestrator.workspace import snapshot
from orchestrator.workspace.apply import base_record, transaction
from orchestrator.workspace.apply.branch import commit_on_branch
from orchestrator.workspace.apply.plan import Plan, Planner, Step
from orchestrator.workspace.apply.rollback import recover
from orchestrator.workspace.apply.transaction import Transaction
from orchestrator.workspace.changes.listing import Found, survey
from orchestrator.workspace.changes.selection import Chosen
from orchestrator.workspace.overlay.diff import Difference, Whiteout, differences
from orchestrator.workspace.overlay.editor import UpperEditor
from orchestrator.workspace.path_states import Root
from orchestrator.workspace.sandboxed_git import SCRATCH_PREFIX, GitError
from orchestrator.workspace.setup.layout import as_prepared, own_directory

_NEVER_NS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    paths: list[str]
    old: Path | None


class Reviewer:
    """One workspace, looked at in order to change something.  Everything in here blocks."""

    def __init__(self, mount: WorkspaceMount, whiteout: Whiteout) -> None:
        mount = as_prepared(mount)
        assert mount.upper is not None
        self._upper = mount.upper
        self._lower = mount.source
        self._target = mount.target or mount.source
        self._base = mount.upper.parent
        self._whiteout = whiteout

    def take_down(self, since_ns: int) -> base_record.Record:
        """Bring the record of bases up to date.  Raises StorageError."""
        if self._target != self._lower:
            since_ns = _NEVER_NS  # nobody changes the private copy
        try:
            return base_record.update(
                self._base, upper=self._upper, lower=self._lower, whiteout=self._whiteout, since_ns=since_ns
            )
        except OSError as error:
            raise self._unusable(error) from error

    def end_of_run(self, run_id: str, since_ns: int) -> None:
        """Remove copies that the agent made and did not change, so that they hide nothing; then take down the rest."""
        try:
            with Root(self._upper) as upper, Root(self._lower) as lower:
                UpperEditor(upper, lower, self._whiteout).tidy()
        except OSError as error:
            raise self._unusable(error) from error
        bases = base_record.document(self.take_down(since_ns))
        try:
            changed = [(one.path, one.after is not None) for one in self._differences()]
            snapshot.take(self._base, run_id, upper=self._upper, changed=changed, bases=bases, whiteout=self._whiteout)
        except OSError as error:
            raise self._unusable(error) from error

    def apply(self, request: ApplyRequest, since_ns: int, *, author: str) -> ApplyResult:
        """See ``Reviews.apply``."""
        if self._lower == self._base / "empty":
            raise InvalidRequestError("this conversation works without a repo: there is nowhere to apply anything to")
        try:
            journal = self._base / transaction.DIRECTORY
            recover(journal)
            bases = self.take_down(since_ns)
            with Root(self._upper) as upper, Root(self._lower) as lower, Root(self._target) as target:
                planner = Planner(
                    upper=upper, target=target, record=bases, work=self._base, on_conflict=request.on_conflict
                )
                plan = planner.plan(iter(self.chosen(request.selection)))
                if request.dry_run:
                    return ApplyResult(applied=False, files=plan.outcomes)
                if plan.conflicts:
                    raise _refusal(plan)
                if request.branch is not None:
                    commit = commit_on_branch(
                        self._target,
                        upper,
                        plan.steps,
                        branch=request.branch,
                        message=request.message,
                        author=author,
                        scratch_parent=self._base,
                    )
                    return ApplyResult(applied=True, files=plan.outcomes, branch=request.branch, commit=commit)
                if plan.steps:
                    Transaction(target=target, upper=upper, journal=journal, token=_token()).run(plan.steps)
                if self._target != self._lower:
                    self._advance(plan, lower, target, journal)
                self._let_go(plan, upper, lower, bases)
                return ApplyResult(applied=True, files=plan.outcomes)
        except OSError as error:
            raise self._unusable(error) from error
        except GitError as error:
            raise StorageError(f"git could not do it: {error}") from error

    def discard(self, paths: tuple[str, ...]) -> list[str]:
        """Make these paths what the repo has; the paths that were something else.  Raises ConflictError."""
        try:
            recover(self._base / transaction.DIRECTORY)
            chosen = self.chosen(ChangeSelection(paths=paths, ignored=True))
            with Root(self._upper) as upper, Root(self._lower) as lower:
                editor = UpperEditor(upper, lower, self._whiteout)
                editor.revert(chosen)
                editor.tidy()
            self._forget(base_record.load(self._base))
        except OSError as error:
            raise self._unusable(error) from error
        return sorted(os.fsdecode(one.path) for one in chosen)

    def discard_all(self) -> Dropped:
        """Put an empty upper directory in the place of this one, which is the caller's to remove."""
        try:
            recover(self._base / transaction.DIRECTORY)
            paths = sorted(os.fsdecode(one.path) for one in self._differences())
            old = self._base / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
            self._upper.rename(old)
            own_directory(self._upper)
            self._forget(base_record.load(self._base))
        except OSError as error:
            raise self._unusable(error) from error
        return Dropped(paths=paths, old=old)

    def rollback(self, run_id: str) -> Dropped:
        """Take the workspace back to the end of a run.  Raises NotFoundError."""
        try:
            recover(self._base / transaction.DIRECTORY)
            wanted = snapshot.of_run(self._base, run_id)
            before = {one.path for one in self._differences()}
            old = snapshot.restore(self._base, wanted, f"{SCRATCH_PREFIX}{uuid.uuid4().hex}")
            after = {one.path for one in self._differences()}
            base_record.put_back(base_record.load(self._base), {**wanted.bases})
        except OSError as error:
            raise self._unusable(error) from error
        return Dropped(paths=[os.fsdecode(path) for path in sorted(before | after)], old=old)

    def _forget(self, bases: base_record.Record) -> None:
        left = {one.path for one in self._differences()}
        base_record.forget(bases, set(bases.bases) - left)
        snapshot.rebase(self._base, left)

    def _let_go(self, plan: Plan, upper: Root, lower: Root, bases: base_record.Record) -> None:
        """What the repo has now need not be in the overlay any more: later changes of the repo shall show through."""
        editor = UpperEditor(upper, lower, self._whiteout)
        merged = {step.path for step in plan.steps if step.data is not None}
        if merged:
            editor.revert([one for one in self._differences() if one.path in merged])
        editor.tidy()
        self._forget(bases)

    def _advance(self, plan: Plan, lower: Root, target: Root, journal: Path) -> None:
        """The private copy takes over what the repo has now at the applied paths."""
        steps = []
        for one in plan.outcomes:
            path = os.fsencode(one.path)
            if one.outcome in {"applied", "merged", "same"} and (step := took(path, lower, target)) is not None:
                steps.append(step)
        if steps:
            Transaction(target=lower, upper=target, journal=journal, token=_token()).run(steps)

    def _differences(self) -> list[Difference]:
        return list(differences(self._upper, self._lower, whiteout=self._whiteout, large=0))

    def chosen(self, selection: ChangeSelection) -> list[Difference]:
        """The differences that are meant; a rename brings both of its sides.

        Raises InvalidRequestError when a path stands for no change.
        """
        chosen = Chosen(selection)
        found = survey(
            differences(self._upper, self._lower, whiteout=self._whiteout),
            upper=self._upper,
            lower=self._lower,
            whiteout=self._whiteout,
        )
        if missing := chosen.unmatched(path for one in found for path in paths_of(one)):
            names = ", ".join(repr(path.decode(errors="replace")) for path in missing[:5])
            raise InvalidRequestError(f"nothing was changed at {names}")
        wanted: set[bytes] = set()
        for one in found:
            if chosen.takes(one.path, one.origin.path if one.origin else None, ignored=one.change.ignored):
                wanted.update(paths_of(one))
        return [one for one in self._differences() if one.path in wanted]

    def _unusable(self, error: OSError) -> StorageError:
        where = error.filename if error.filename is not None else self._lower
        return StorageError(f"the workspace over {self._lower} cannot be used ({where!r}): {error.strerror}")


def took(path: bytes, lower: Root, target: Root) -> Step | None:
    """The step that makes a path of ``lower`` what ``target`` has there; None: it is that, or cannot be."""
    old, new = lower.state(path), target.state(path)
    kinds = {state.key.kind for state in (old, new) if state is not None}
    if (old and old.key) == (new and new.key) or not kinds <= {"file", "link"}:
        return None
    action: Literal["write", "link", "delete"] = "delete"
    if new is not None:
        action = "link" if new.key.kind == "link" else "write"
    return Step(
        path=path, action=action, before=old, after=new.key if new else None, mode=new.mode & 0o777 if new else 0
    )


def _token() -> bytes:
    return uuid.uuid4().hex[:8].encode()


def paths_of(one: Found) -> list[bytes]:
    """The path of a change; of a rename both."""
    return [one.path, *([one.origin.path] if one.origin else [])]


def _refusal(plan: Plan) -> ConflictError:
    files = [asdict(one) for one in plan.conflicts]
    first = plan.conflicts[0]
    more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
    return ConflictError(
        f"nothing was applied, {first.path!r}{more}: {first.reason}; look at the files, then choose merge, theirs (the "
        "agent's) or ours (the repo's), or fewer paths",
        files=files,
    )
