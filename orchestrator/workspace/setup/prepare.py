"""The directories of a subagent and of a run: made, kept for the next run, removed.

``<state>/subagents/<id>/``   ``home``; ``upper``, ``work`` (overlay); ``copy`` (a private copy beneath
                              it); ``empty`` (where there is no repo); ``source.json`` (what it works on)
``<runtime>/<run id>/``       control directory: the file ``prompt``, and the sockets that the relay opens there

Ids become paths, so they are checked and never escaped.  What is inside ``home``, ``upper`` and ``work`` belongs to the
agent and the kernel; here nothing in them is opened, and removal follows no links.

A private copy is for a repo that changes while the agent works on it: the overlay lies over the copy, and no agent
writes to it; blocks are shared with the repo where the file system can do that.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, Literal

from orchestrator.config.models import Paths
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.contract.workspace import Prepared
from orchestrator.errors import ConflictError, InvalidRequestError, StorageError
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes
from orchestrator.workspace.path_states import write_whole
from orchestrator.workspace.sandboxed_git import SCRATCH_PREFIX
from orchestrator.workspace.setup.layout import ID, emptied, own_directory, recorded, removed
from orchestrator.workspace.setup.repo_checks import check_overlay_home, checked_source

Mode = Literal["overlay", "copy", "direct", "readonly"]
_LAYERED: Final = frozenset({"overlay", "copy"})
_LONGEST_SOCKET: Final = "/gateway.sock"
COPY_SECONDS: Final = 1800.0
_SEARCH: Final = os.defpath


class Directories:
    """Makes and removes them.

    ``delete_tree`` removes a directory that may hold files of subordinate ids; it is slow, so it is asked only when
    plain removal fails.
    """

    def __init__(self, paths: Paths, delete_tree: Callable[[Path], Awaitable[None]]) -> None:
        self._delete_tree = delete_tree
        self._paths = paths
        self._overlay_checked = False

    async def prepare(self, *, subagent_id: str, source: Path | None, mode: Mode) -> Prepared:
        """The subagent's directories, made at its first run and kept for the following ones.

        ``source`` None: an empty workspace.  No container of the subagent may be running.  Raises
        InvalidRequestError (the repo cannot be used, and why), ConflictError (the subagent works on another repo)
        and StorageError (the state directory cannot hold a workspace).
        """
        base = self.base(subagent_id)
        if source is None and mode == "direct":
            raise InvalidRequestError("the workspace mode 'direct' needs a repo")
        lower = await asyncio.to_thread(self._make, base, source, mode)
        if mode in _LAYERED and not await asyncio.to_thread(emptied, base / "work"):
            await self._delete_tree(base / "work")
            await asyncio.to_thread(own_directory, base / "work")
        return Prepared(mount=_mount(base, lower, mode), home=base / "home")

    def mount_of(self, *, subagent_id: str, source: Path | None, mode: Mode) -> WorkspaceMount:
        """The mount of a prepared subagent, without touching the disk."""
        base = self.base(subagent_id)
        return _mount(base, source or base / "empty", mode)

    async def discard(self, subagent_id: str) -> None:
        """Remove everything of a subagent; fine when there is nothing.  Raises StorageError."""
        base = self.base(subagent_id)
        if not await asyncio.to_thread(removed, base):
            await self._delete_tree(base)
            if await asyncio.to_thread(os.path.lexists, base):
                raise StorageError(f"{base} could not be removed")

    async def make_control_dir(self, run_id: str, prompt: str) -> Path:
        """The control directory of a run, with the file ``prompt`` in it.  Raises StorageError."""
        directory = self._control(run_id)
        await asyncio.to_thread(_make_control_dir, directory, prompt)
        return directory

    async def remove_control_dir(self, run_id: str) -> None:
        """Remove it with all that is in it; fine when there is none.  Raises StorageError."""
        directory = self._control(run_id)
        if not await asyncio.to_thread(removed, directory):
            raise StorageError(f"{directory} could not be removed")

    async def stale_control_dirs(self, active: AbstractSet[str]) -> list[str]:
        """Ids of the control directories that belong to none of the ``active`` runs."""
        return await asyncio.to_thread(_stale, self._paths.runtime_dir, frozenset(active))

    def base(self, subagent_id: str) -> Path:
        """The subagent's own directory.  Raises InvalidRequestError."""
        if not ID.fullmatch(subagent_id):
            raise InvalidRequestError("a subagent id has 32 hexadecimal digits")
        return self._paths.subagent_dir(subagent_id)

    def _control(self, run_id: str) -> Path:
        if not ID.fullmatch(run_id):
            raise InvalidRequestError("a run id has 32 hexadecimal digits")
        return self._paths.control_dir(run_id)

    def _make(self, base: Path, source: Path | None, mode: Mode) -> Path:
        """Make what is missing; the real path of the lower directory."""
        try:
            known_source = recorded(base)
            lower = base / "empty"
            if source == lower:
                source = None
            if source is not None:
                # A link that has been pointed elsewhere since the first run would put the changes on another tree.
                known = known_source[1] if known_source is not None and known_source[0] == str(source) else source
                lower = checked_source(known, forbidden=(self._paths.state_dir, self._paths.runtime_dir), mode=mode)
            _check_same(known_source, lower if source is not None else None)
            base.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if mode in _LAYERED and not self._overlay_checked:
                check_overlay_home(base.parent)
                self._overlay_checked = True
            own_directory(base)
            for name in ("home", "upper", "work") if mode in _LAYERED else ("home",):
                own_directory(base / name)
            if source is None:
                own_directory(lower)
            if mode == "copy":
                make_copy(lower, base / "copy")
            for left in base.glob(f"{SCRATCH_PREFIX}*"):  # a service died while it looked at the changes
                shutil.rmtree(left, ignore_errors=True)
            if known_source is None:
                given = {"given": source and str(source), "real": str(lower)}
                write_whole(base / "source.json", json.dumps(given).encode())
        except OSError as error:
            raise _storage_error(base, error) from error
        return lower


def _mount(base: Path, lower: Path, mode: Mode) -> WorkspaceMount:
    if mode == "copy":
        return WorkspaceMount(
            mode="overlay", source=base / "copy", upper=base / "upper", work=base / "work", target=lower
        )
    if mode != "overlay":
        return WorkspaceMount(mode=mode, source=lower)
    return WorkspaceMount(mode=mode, source=lower, upper=base / "upper", work=base / "work")


def _check_same(known: tuple[str | None, Path] | None, lower: Path | None) -> None:
    if known is None or (known[1] if known[0] is not None else None) == lower:
        return
    has = f"on {known[1]}" if known[0] is not None else "without a repo"
    raise ConflictError(f"this subagent works {has}: start a new one for {lower or 'an empty workspace'}")


def _make_control_dir(directory: Path, prompt: str) -> None:
    if socket_path_bytes(directory) + len(_LONGEST_SOCKET) > SOCKET_PATH_MAX:
        raise StorageError(
            f"the runtime directory {directory.parent} is too long for the sockets in it: "
            "set storage.runtime_dir in podmentor.yaml to a shorter path"
        )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        own_directory(directory)
        write_whole(directory / "prompt", prompt.encode("utf-8", "replace"))
    except OSError as error:
        raise _storage_error(directory, error) from error


def _stale(runtime_dir: Path, active: frozenset[str]) -> list[str]:
    try:
        with os.scandir(runtime_dir) as entries:
            return sorted(
                entry.name
                for entry in entries
                if ID.fullmatch(entry.name) and entry.name not in active and entry.is_dir(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def _storage_error(path: Path, error: OSError) -> StorageError:
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return StorageError(f"{error.filename or path} is not a directory")
    return StorageError(f"{error.filename or path} cannot be used: {error.strerror}")


def make_copy(repo: Path, target: Path) -> None:
    """Copy ``repo`` to ``target``, whole or not at all; what is there is kept.  Blocking.

    Raises StorageError, OSError.
    """
    if target.is_dir():
        return
    program = shutil.which("cp", path=_SEARCH)
    if program is None:
        raise StorageError("cp is not installed on the service's machine (package coreutils)")
    part = target.parent / f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
    part.mkdir(mode=0o700)
    argv = [program, "--archive", "--reflink=auto", "--", f"{repo}/.", str(part)]
    try:
        done = subprocess.run(  # noqa: S603  # a list of arguments, and the program from a fixed search path
            argv,
            capture_output=True,
            check=False,
            timeout=COPY_SECONDS,
            stdin=subprocess.DEVNULL,
            env={"PATH": _SEARCH, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise StorageError(f"copying {repo} took longer than {COPY_SECONDS / 60:.0f} minutes") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        shutil.rmtree(part, ignore_errors=True)
        raise StorageError(f"{repo} cannot be copied: {said[-1] if said else done.returncode}")
    part.chmod(0o700)
    part.rename(target)
