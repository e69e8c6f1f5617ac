"""Who uses which subscription's HOME, and how its login survives that.

Beside the HOMEs, out of the agents' reach: ``<plugin_storage>/accounts/<user_id>/<backend>/`` with

``lock``       held (flock) while somebody logs in, and for the moment in which a run begins to use the HOME
``leases/``    an empty file for each run that uses the HOME, named by its id
``removal``    somebody has asked to disconnect; removed with everything else when that is done
``login/``     copies of the files with the login, as they were when the last run began
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from orchestrator.contract.accounts import HomeKey
from orchestrator.credentials.byo_subscription import (
    LOGIN_FILE_MAX,
    can_be_login,
    check_names,
    disconnect,
    existing_home,
    get_home,
    is_home_primed,
    storage_error,
)
from orchestrator.errors import AuthRequiredError, ConflictError
from orchestrator.system.locks import try_lock
from orchestrator.system.nofollow import opened, read_file, remove_at, write_file
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

_NOTES: Final = "accounts"
_COPY: Final = "file-"


class Homes:
    """``SubscriptionHomes`` on the disk.  One service owns ``plugin_storage``; logins may come from other processes."""

    def __init__(self, plugin_storage: Path) -> None:
        self._storage = plugin_storage
        self._leases: dict[str, HomeKey] | None = None
        self._one = asyncio.Lock()
        self._tasks = TaskOwner("homes")

    async def usable(self, key: HomeKey) -> Path | None:
        """See the Protocol."""
        return await asyncio.to_thread(self._usable, key)

    async def allocate(self, key: HomeKey) -> Path:
        """See the Protocol."""
        return await asyncio.to_thread(self._allocate, key)

    async def enter(self, run_id: str, key: HomeKey, files: Sequence[str]) -> Path:
        """See the Protocol."""
        # To its end, even for a run that is cancelled meanwhile: its ``leave`` comes after it.
        return await asyncio.shield(self._tasks.spawn(self._begin(run_id, key, files), name="enter", awaited=True))

    async def leave(self, run_id: str) -> list[str]:
        """See the Protocol."""
        return await asyncio.shield(self._tasks.spawn(self._end(run_id), name="leave", awaited=True))

    async def leases(self) -> Mapping[str, HomeKey]:
        """See the Protocol."""
        return dict(await self._known())

    async def ask_removal(self, key: HomeKey, *, unless_used: bool = False) -> None:
        """See the Protocol."""
        async with self._one:  # a run that is about to use the HOME has its lease first, or gets none
            if unless_used and key in (await self._known()).values():
                raise ConflictError("a run is using this account")
            await asyncio.to_thread(self._note, key, "removal")

    async def asked_removals(self) -> list[HomeKey]:
        """See the Protocol."""
        return await asyncio.to_thread(lambda: [key for key in self._all() if self._removal_asked(key)])

    async def remove(self, key: HomeKey) -> None:
        """See the Protocol."""
        async with self._one:
            if key in (await self._known()).values():
                raise ConflictError("a run is using this account")
            await asyncio.to_thread(self._remove, key)

    @contextmanager
    def logging_in(self, key: HomeKey) -> Iterator[Path]:
        """The HOME for somebody who logs in now; until the end no run begins to use it.

        Raises ConflictError while a run uses it, somebody else logs in, or it is being removed.
        """
        with self._locked(key, "somebody is logging in to this account already"):
            home = self._allocate(key)  # not before: a removal that is under way would take it away again
            if running := self._lease_files(key):
                raise ConflictError(f"the run {running[0]} is using this account: wait for its end, or cancel it")
            yield home

    async def _begin(self, run_id: str, key: HomeKey, files: Sequence[str]) -> Path:
        async with self._one:
            leases = await self._known()
            home = await asyncio.to_thread(self._enter, run_id, key, files)
            leases[run_id] = key
            return home

    async def _end(self, run_id: str) -> list[str]:
        async with self._one:
            leases = await self._known()
            if (key := leases.get(run_id)) is None:
                return []
            restored = await asyncio.to_thread(self._leave, run_id, key)
            del leases[run_id]
            return restored

    async def _known(self) -> dict[str, HomeKey]:
        if self._leases is None:
            found = await asyncio.to_thread(lambda: {run: key for key in self._all() for run in self._lease_files(key)})
            if self._leases is None:
                self._leases = found
        return self._leases

    # --- in a thread ------------------------------------------------------------------------------------------------

    def _notes(self, key: HomeKey) -> Path:
        return self._storage / _NOTES / key.user_id / key.backend

    def _note(self, key: HomeKey, *name: str) -> None:
        check_names(*key)
        path = self._notes(key).joinpath(*name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        except OSError as error:
            raise storage_error(path, error) from error

    def _all(self) -> list[HomeKey]:
        return [HomeKey(path.parent.name, path.name) for path in sorted((self._storage / _NOTES).glob("*/*"))]

    def _lease_files(self, key: HomeKey) -> list[str]:
        return sorted(path.name for path in (self._notes(key) / "leases").glob("*"))

    def _removal_asked(self, key: HomeKey) -> bool:
        return (self._notes(key) / "removal").exists()

    @contextmanager
    def _locked(self, key: HomeKey, taken: str) -> Iterator[None]:
        """Raises ConflictError(``taken``) at once when somebody else has the lock; it goes with its process."""
        self._note(key, "lock")
        path = self._notes(key) / "lock"
        try:
            descriptor = try_lock(path)
        except OSError as error:  # gone again with the rest, for example
            raise storage_error(path, error) from error
        if descriptor is None:
            raise ConflictError(taken)
        try:
            yield
        finally:
            os.close(descriptor)

    def _usable(self, key: HomeKey) -> Path | None:
        home = existing_home(self._storage, key)
        return home if home is not None and not self._removal_asked(key) and is_home_primed(home) else None

    def _allocate(self, key: HomeKey) -> Path:
        check_names(*key)
        if self._removal_asked(key):
            raise ConflictError("this account is being disconnected: wait for the end of the runs that use it")
        return get_home(plugin_storage=self._storage, user_id=key.user_id, backend=key.backend)

    def _enter(self, run_id: str, key: HomeKey, files: Sequence[str]) -> Path:
        with self._locked(key, "somebody is logging in to this account right now: run it again after that"):
            home = self._usable(key)
            if home is None:
                raise AuthRequiredError("the account that this run was to use is no longer connected")
            try:
                if not self._lease_files(key):  # else a CLI may be writing just now
                    self._put_back(key, home)
                self._keep(key, home, files)
            except OSError as error:
                raise storage_error(home, error) from error
            self._note(key, "leases", run_id)
        return home

    def _leave(self, run_id: str, key: HomeKey) -> list[str]:
        home = existing_home(self._storage, key)
        others = [name for name in self._lease_files(key) if name != run_id]
        try:
            if home is None or others or self._removal_asked(key):
                return []
            return self._put_back(key, home)
        except OSError as error:
            raise storage_error(self._notes(key), error) from error
        finally:  # last: from then on somebody may log in
            (self._notes(key) / "leases" / run_id).unlink(missing_ok=True)

    def _keep(self, key: HomeKey, home: Path, files: Sequence[str]) -> None:
        """Copy what is whole."""
        copies = self._notes(key) / "login"
        copies.mkdir(mode=0o700, exist_ok=True)
        with opened(home) as source, opened(copies) as target:
            for file in files:
                data = read_file(source, file, limit=LOGIN_FILE_MAX)
                if data is not None and can_be_login(data):
                    write_file(target, _COPY + quote(file, safe=""), data)

    def _put_back(self, key: HomeKey, home: Path) -> list[str]:
        """Put the copies of files back that are no longer whole."""
        restored = []
        copies = self._notes(key) / "login"
        with opened(home) as target:
            for copy in sorted(copies.glob(f"{_COPY}*")):
                file = unquote(copy.name.removeprefix(_COPY))
                if not can_be_login(read_file(target, file, limit=LOGIN_FILE_MAX)):
                    write_file(target, file, copy.read_bytes())
                    restored.append(file)
        return restored

    def _remove(self, key: HomeKey) -> None:
        check_names(*key)
        notes = self._notes(key)
        with self._locked(key, "somebody is logging in to this account right now"), opened(notes.parent) as fd:
            disconnect(plugin_storage=self._storage, user_id=key.user_id, backend=key.backend)
            remove_at(fd, notes.name)  # last: until then the removal is known to be asked for
