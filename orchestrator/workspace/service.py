"""The workspaces as the rest of the service knows them: prepared, looked at, applied, taken back.

``DirectoryWorkspaces`` keeps the event loop free and locks; what it does to one overlay is in ``Review``.  What changes
something runs inside ``exclusive``, so that no run is accepted meanwhile, and one apply at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

from orchestrator.config.models import Paths
from orchestrator.contract.changes import (
    EVERYTHING,
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
)
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.contract.workspace import Prepared
from orchestrator.errors import ConflictError, InvalidRequestError, NotFoundError, StorageError
from orchestrator.workspace import snapshot
from orchestrator.workspace.apply import base_record, transaction
from orchestrator.workspace.apply.branch import commit_on_branch
from orchestrator.workspace.apply.plan import Plan, Planner, step_between
from orchestrator.workspace.apply.rollback import recover
from orchestrator.workspace.apply.transaction import Transaction
from orchestrator.workspace.changes import commits, patch
from orchestrator.workspace.changes.listing import Chosen, Found, survey
from orchestrator.workspace.changes.patch import patch_of
from orchestrator.workspace.overlay.diff import Difference, Whiteout, differences, hiding, is_whiteout
from orchestrator.workspace.overlay.editor import UpperEditor
from orchestrator.workspace.path_states import Root
from orchestrator.workspace.sandboxed_git import SCRATCH_PREFIX, GitError
from orchestrator.workspace.setup.layout import as_prepared, own_directory, removed
from orchestrator.workspace.setup.prepare import Directories, Mode
from orchestrator.workspace.setup.repo_checks import has_foreign_clock

log = logging.getLogger(__name__)
T = TypeVar("T")
_OLD = f"{SCRATCH_PREFIX}old"
"""Where an upper directory goes when another takes its place."""
Recovered = dict[str, Literal["completed", "rolled_back"]]


class DirectoryWorkspaces:
    """``delete_tree`` removes a directory that may hold files of subordinate ids; see ``Directories``.

    ``whiteout`` is another one only in tests that cannot make real ones.
    """

    def __init__(
        self, paths: Paths, delete_tree: Callable[[Path], Awaitable[None]], *, whiteout: Whiteout = is_whiteout
    ) -> None:
        self._paths = paths
        self._directories = Directories(paths, delete_tree)
        self._delete_tree = delete_tree
        self._whiteout = whiteout
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By subagent; each lasts as long as somebody has it or waits for it."""
        self._applying = asyncio.Lock()

    async def prepare(self, *, subagent_id: str, source: Path | None, mode: Mode) -> Prepared:
        """The subagent's directories, ready for a run that begins now.

        ``source`` None: an empty workspace.  No container of the subagent may be running.  Raises InvalidRequestError
        (the repo cannot be used, and why), ConflictError (the subagent works on another repo) and StorageError (the
        state directory cannot hold a workspace).
        """
        base = self._directories.base(subagent_id)
        try:
            await asyncio.to_thread(snapshot.finish, base, _OLD)
            prepared = await self._directories.prepare(subagent_id=subagent_id, source=source, mode=mode)
            mount = prepared.mount
            if mount.upper is not None and mount.target is None and source is not None:
                await asyncio.to_thread(_begin, base, mount.source)
        except OSError as error:
            raise StorageError(f"{error.filename or base} cannot be used: {error.strerror}") from error
        return prepared

    def mount_of(self, *, subagent_id: str, source: Path | None, mode: Mode) -> WorkspaceMount:
        """The mount of a prepared subagent, without touching the disk."""
        return self._directories.mount_of(subagent_id=subagent_id, source=source, mode=mode)

    async def discard(self, subagent_id: str) -> None:
        """Remove everything of a subagent; fine when there is nothing.  Raises StorageError."""
        await self._directories.discard(subagent_id)

    async def make_control_dir(self, run_id: str, prompt: str) -> Path:
        """The control directory of a run, with the file ``prompt`` in it.  Raises StorageError."""
        return await self._directories.make_control_dir(run_id, prompt)

    async def remove_control_dir(self, run_id: str) -> None:
        """Remove it with all that is in it; fine when there is none.  Raises StorageError."""
        await self._directories.remove_control_dir(run_id)

    async def stale_control_dirs(self, active: AbstractSet[str]) -> list[str]:
        """Ids of the control directories that belong to none of the ``active`` runs."""
        return await self._directories.stale_control_dirs(active)

    @asynccontextmanager
    async def exclusive(self, subagent_id: str) -> AsyncIterator[None]:
        """See ``contract.workspace.Workspaces``."""
        lock = self._locks.setdefault(subagent_id, asyncio.Lock())
        async with lock:
            yield

    async def list_changes(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> list[FileChange]:
        """The changed files, sorted by path; line counts are 0 for binary ones.  Ignored files are among them, marked.

        Pipes, sockets and directories that cannot be looked into are listed too (binary, without a size).  Raises
        InvalidRequestError for ``direct`` and for a wrong path, StorageError when the workspace or the repo has gone.
        """
        chosen = Chosen(selection)

        def read(review: Review) -> list[FileChange]:
            return [one.change for one in review.survey() if any(map(chosen.covers, one.paths))]

        return await self._read(mount, read) or []

    async def unified_patch(self, mount: WorkspaceMount, selection: ChangeSelection = EVERYTHING) -> bytes:
        """The chosen changes in git's patch format, binary content included; ignored files only when asked for.

        Raises as ``list_changes`` does.
        """
        chosen = Chosen(selection)
        return await self._read(mount, lambda review: review.patch(chosen)) or b""

    async def list_commits(self, mount: WorkspaceMount) -> list[CommitInfo]:
        """The commits that the agent made, newest first.  Raises as ``list_changes`` does."""
        return await self._read(mount, lambda review: commits.listed(review.upper, review.lower)) or []

    async def export_commits(self, mount: WorkspaceMount, form: CommitsForm) -> bytes:
        """The same as a bundle or as patches for ``git am``.  Raises NotFoundError when there are none."""
        data = await self._read(mount, lambda review: commits.exported(review.upper, review.lower, form))
        if not data:
            raise NotFoundError("the agent has made no commits in this workspace")
        return data

    async def run_ended(self, mount: WorkspaceMount, *, run_id: str) -> None:
        """Record what the repo has where the agent changed something, and take a snapshot.  Raises StorageError."""
        if mount.upper is None:
            return
        await _worker(lambda: Review(mount, self._whiteout).end_of_run(run_id))

    async def apply(self, mount: WorkspaceMount, request: ApplyRequest, *, author: str) -> ApplyResult:
        """Bring changes into the repo.  Raises ConflictError, InvalidRequestError, StorageError."""
        _check_overlay(mount, "nothing that could be applied")
        async with self._applying:
            return await _worker(lambda: Review(mount, self._whiteout).apply(request, author=author))

    async def discard_changes(self, mount: WorkspaceMount, paths: tuple[str, ...] = ()) -> list[str]:
        """Drop changes.  Raises ConflictError, InvalidRequestError, StorageError."""
        _check_overlay(mount, "nothing to drop changes from")
        review = await asyncio.to_thread(Review, mount, self._whiteout)
        if paths:
            return await _worker(lambda: review.discard(paths))
        return await self._cleared(await _worker(review.discard_all))

    async def changes_of_run(self, mount: WorkspaceMount, run_id: str) -> dict[str, str]:
        """By path what the run changed.  Raises NotFoundError, InvalidRequestError, StorageError."""
        base = _check_overlay(mount, "no snapshot").parent
        return await asyncio.to_thread(lambda: snapshot.changes_of(snapshot.of_run(base, run_id)))

    async def rollback(self, mount: WorkspaceMount, run_id: str) -> list[str]:
        """Take the workspace back to the end of a run; the paths that were changed.  Raises NotFoundError."""
        _check_overlay(mount, "no snapshot")
        review = await asyncio.to_thread(Review, mount, self._whiteout)
        return await self._cleared(await _worker(lambda: review.rollback(run_id)))

    async def recover(self) -> Recovered:
        """Finish what a crash interrupted; by subagent, how its apply ended."""
        return await asyncio.to_thread(_recover_all, self._paths.state_dir / "subagents")

    async def _cleared(self, dropped: Dropped) -> list[str]:
        if dropped.old is not None and not await asyncio.to_thread(removed, dropped.old):
            await self._delete_tree(dropped.old)
        return dropped.paths

    async def _read(self, mount: WorkspaceMount, read: Callable[[Review], T]) -> T | None:
        """What ``read`` finds, in a thread; None for a read-only workspace, in which nothing can be changed."""
        if mount.mode == "readonly":
            return None
        if mount.mode == "direct" or mount.upper is None:
            raise InvalidRequestError(
                "the agent worked directly in the repo, so podmentor has no record of its changes: "
                f"use git there (git -C {mount.source} status, git diff)"
            )
        stop = threading.Event()

        def work() -> T:
            review = Review(mount, self._whiteout, stop)
            try:
                return read(review)
            except OSError as error:
                raise StorageError(f"the workspace cannot be compared with {review.lower}: {error.strerror}") from error
            except GitError as error:
                raise StorageError(f"git cannot read what the agent left in {review.upper}: {error}") from error

        try:
            return await asyncio.to_thread(work)
        finally:
            stop.set()  # a caller that has gone away need not wait for the end of a long walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """``paths`` that were changed; ``old``: the upper directory that was, to be removed."""

    paths: list[str]
    old: Path | None


class Review:
    """One overlay, looked at or changed while no container has it mounted.  Everything in here blocks.

    ``stop``: set, the looking ends early, with what was found so far.
    """

    def __init__(self, mount: WorkspaceMount, whiteout: Whiteout, stop: threading.Event | None = None) -> None:
        mount = as_prepared(mount)
        assert mount.upper is not None
        self.upper = mount.upper
        self.lower = mount.source
        self._target = mount.target or mount.source
        self._base = mount.upper.parent
        self._whiteout = whiteout
        self._stop = stop or threading.Event()

    def survey(self) -> list[Found]:
        """All changes, sorted by path.  Raises OSError, GitError, StorageError."""
        found = self._until_stopped(differences(self.upper, self.lower, whiteout=self._whiteout))
        return survey(found, upper=self.upper, lower=self.lower, whiteout=self._whiteout)

    def patch(self, chosen: Chosen) -> bytes:
        """The chosen changes.  Raises OSError, GitError, StorageError."""
        wanted = {one.path: one for one in self.survey() if _takes(chosen, one)}
        again = differences(self.upper, self.lower, whiteout=self._whiteout, large=patch.PATCH_FILE_BYTES)
        return patch_of(self._until_stopped(again), wanted, lower=self.lower, place=self._base)

    def end_of_run(self, run_id: str) -> None:
        """Remove copies that the agent made and did not change, so that they hide nothing; then record the rest."""
        try:
            with Root(self.upper) as upper, Root(self.lower) as lower:
                UpperEditor(upper, lower, self._whiteout).tidy()
            bases = base_record.document(self._record_bases(after_run=True))
            changed = [(one.path, one.after is not None) for one in self._differences()]
            snapshot.take(self._base, run_id, upper=self.upper, changed=changed, bases=bases, whiteout=self._whiteout)
        except OSError as error:
            raise self._unusable(error) from error

    def apply(self, request: ApplyRequest, *, author: str) -> ApplyResult:
        """See ``DirectoryWorkspaces.apply``."""
        if self.lower == self._base / "empty":
            raise InvalidRequestError("this subagent works without a repo: there is nowhere to apply anything to")
        try:
            journal = self._base / transaction.DIRECTORY
            recover(journal)
            bases = self._record_bases(after_run=False)
            with Root(self.upper) as upper, Root(self.lower) as lower, Root(self._target) as target:
                planner = Planner(
                    upper=upper, target=target, record=bases, work=self._base, on_conflict=request.on_conflict
                )
                plan = planner.plan(iter(self._chosen(request.selection)))
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
                    made = commit is not None
                    branch = request.branch if made else None
                    return ApplyResult(applied=made, files=plan.outcomes, branch=branch, commit=commit)
                if plan.steps:
                    Transaction(target=target, upper=upper, journal=journal, token=_token()).run(plan.steps)
                if self._target != self.lower:
                    self._advance(plan, lower, target, journal)
                self._detach(plan, upper, lower, bases)
                return ApplyResult(applied=True, files=plan.outcomes)
        except OSError as error:
            raise self._unusable(error) from error
        except GitError as error:
            raise StorageError(f"git could not do it: {error}") from error

    def discard(self, paths: tuple[str, ...]) -> list[str]:
        """Make these paths what the repo has; the paths that were something else.  Raises ConflictError."""
        try:
            recover(self._base / transaction.DIRECTORY)
            chosen = self._chosen(ChangeSelection(paths=paths, ignored=True))
            with Root(self.upper) as upper, Root(self.lower) as lower:
                editor = UpperEditor(upper, lower, self._whiteout)
                editor.revert(chosen)
                editor.tidy()
            self._forget(base_record.load(self._base))
        except OSError as error:
            raise self._unusable(error) from error
        except GitError as error:
            raise StorageError(f"git could not do it: {error}") from error
        return sorted(os.fsdecode(one.path) for one in chosen)

    def discard_all(self) -> Dropped:
        """Put an empty upper directory in the place of this one, which is the caller's to remove."""
        try:
            recover(self._base / transaction.DIRECTORY)
            paths = sorted(os.fsdecode(one.path) for one in self._differences())
            old = self._base / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
            self.upper.rename(old)
            own_directory(self.upper)
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
            base_record.put_back(base_record.load(self._base), {**wanted.bases}, self._hidden())
        except OSError as error:
            raise self._unusable(error) from error
        return Dropped(paths=[os.fsdecode(path) for path in sorted(before | after)], old=old)

    def _record_bases(self, *, after_run: bool) -> base_record.Record:
        return base_record.update(
            self._base,
            upper=self.upper,
            lower=self.lower,
            whiteout=self._whiteout,
            private=self._target != self.lower,
            after_run=after_run,
        )

    def _forget(self, bases: base_record.Record) -> None:
        left = {one.path for one in self._differences()}
        base_record.keep(bases, left, self._hidden())
        snapshot.rebase(self._base, left)

    def _hidden(self) -> Iterator[bytes]:
        return hiding(self.upper, whiteout=self._whiteout)

    def _detach(self, plan: Plan, upper: Root, lower: Root, bases: base_record.Record) -> None:
        """What the repo has now need not be in the overlay any more: later changes of the repo shall show through."""
        editor = UpperEditor(upper, lower, self._whiteout)
        merged = {step.path for step in plan.steps if step.data is not None}
        if merged:
            editor.revert([one for one in self._differences() if one.path in merged])
        editor.tidy()
        self._forget(bases)

    def _advance(self, plan: Plan, lower: Root, target: Root, journal: Path) -> None:
        """The private copy takes over what the repo has now at the applied paths."""
        applied = [one for one in plan.outcomes if one.outcome in {"applied", "merged", "same"}]
        steps = [step for one in applied if (step := step_between(os.fsencode(one.path), lower, target)) is not None]
        if steps:
            Transaction(target=lower, upper=target, journal=journal, token=_token()).run(steps)

    def _differences(self) -> list[Difference]:
        return list(differences(self.upper, self.lower, whiteout=self._whiteout, large=0))

    def _until_stopped(self, found: Iterator[Difference]) -> Iterator[Difference]:
        for difference in found:
            if self._stop.is_set():
                return
            yield difference

    def _chosen(self, selection: ChangeSelection) -> list[Difference]:
        """The differences that are meant; a rename brings both of its sides.

        Raises InvalidRequestError when a path stands for no change.
        """
        chosen = Chosen(selection)
        found = self.survey()
        if missing := chosen.unmatched(path for one in found for path in one.paths):
            names = ", ".join(repr(path.decode(errors="replace")) for path in missing[:5])
            raise InvalidRequestError(f"nothing was changed at {names}")
        wanted = {path for one in found if _takes(chosen, one) for path in one.paths}
        return [one for one in self._differences() if one.path in wanted]

    def _unusable(self, error: OSError) -> StorageError:
        where = error.filename if error.filename is not None else self.lower
        return StorageError(f"the workspace over {self.lower} cannot be used ({where!r}): {error.strerror}")


def _begin(base: Path, repo: Path) -> None:
    base_record.begin(base, foreign_clock=has_foreign_clock(repo))


def _takes(chosen: Chosen, one: Found) -> bool:
    return chosen.takes(one.path, one.origin, ignored=one.change.ignored)


def _check_overlay(mount: WorkspaceMount, lacking: str) -> Path:
    """The upper directory.  Raises InvalidRequestError."""
    if mount.upper is None:
        raise InvalidRequestError(f"the workspace mode is {mount.mode}: there is no overlay, and so {lacking}")
    return mount.upper


def _token() -> bytes:
    return uuid.uuid4().hex[:8].encode()


def _refusal(plan: Plan) -> ConflictError:
    files = [asdict(one) for one in plan.conflicts]
    first = plan.conflicts[0]
    more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
    return ConflictError(
        f"nothing was applied, {first.path!r}{more}: {first.reason}; look at the files, then choose merge, theirs (the "
        "agent's) or ours (the repo's), or fewer paths",
        files=files,
    )


async def _worker(work: Callable[[], T]) -> T:
    """``work`` in a thread; a caller that is cancelled still holds its locks until the work is done."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


def _recover_all(subagents: Path) -> Recovered:
    found: Recovered = {}
    for left in sorted(subagents.glob(f"*/{snapshot.NEXT}")):
        snapshot.finish(left.parent, _OLD)
    for journal in sorted(subagents.glob(f"*/{transaction.DIRECTORY}")):
        try:
            how = recover(journal)
        except (OSError, StorageError):
            log.exception("the apply in %s was interrupted and cannot be finished yet", journal)
            continue
        if how != "nothing":
            log.warning("an interrupted apply of subagent %s was %s", journal.parent.name, how.replace("_", " "))
            found[journal.parent.name] = how
    return found
