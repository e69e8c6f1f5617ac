"""A user's own subscription: a HOME per user and backend, in which the CLI's own login lives (C19, C20).

``<plugin_storage>/homes/<user_id>/<backend>/``, mode 0700.  What is in it is the CLI's business: nothing here reads a
token, and nothing here follows a symbolic link, since agents may put any into a HOME.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.config.models import PLAIN_NAME, USER_ID, USER_ID_WORDS, BackendConfig
from orchestrator.contract.accounts import AuthProbe, HomeKey, SubscriptionHomes
from orchestrator.contract.credentials import Resolved, SourceName
from orchestrator.contract.types import AuthStatus, Credentials
from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.system.nofollow import has_regular_file, opened, read_file, remove_at

LOGIN_FILE_MAX: Final = 1024 * 1024
"""Bytes: a file with a login has a few thousand."""
_HOMES: Final = "homes"
_PLAIN: Final = re.compile(PLAIN_NAME)
_USER: Final = re.compile(USER_ID)


def get_home(*, plugin_storage: Path, user_id: str, backend: str) -> Path:
    """The HOME of a user's subscription, made when it is first asked for.

    Raises InvalidRequestError for a user id or backend that is no plain name, StorageError when a component of the
    path is a symbolic link or cannot be made.
    """
    check_names(user_id, backend)
    home = plugin_storage / _HOMES / user_id / backend
    try:
        plugin_storage.mkdir(mode=0o700, parents=True, exist_ok=True)
        for depth in (1, 2, 3):
            with opened(plugin_storage, (_HOMES, user_id, backend)[:depth], make=True) as fd:
                os.fchmod(fd, 0o700)
    except OSError as error:
        raise storage_error(home, error) from error
    return home


def is_home_primed(home: Path) -> bool:
    """Whether there is any regular file below ``home``; symbolic links are not followed and do not count."""
    try:
        with opened(home) as fd:
            return has_regular_file(fd)
    except OSError:
        return False


async def probe_with_home(
    *, adapter: Any, plugin_storage: Path, user_id: str, backend: str, probe: AuthProbe | None = None
) -> AuthStatus:
    """Whether the CLI finds a login in the user's HOME.

    ``probe`` asks the CLI itself, in its container; without one the adapter's ``probe_auth`` is asked.
    """
    home = await asyncio.to_thread(existing_home, plugin_storage, HomeKey(user_id, backend))
    if home is None or not await asyncio.to_thread(is_home_primed, home):
        return AuthStatus(installed=True, authenticated=False, error="no account is connected: nobody has logged in")
    files: Sequence[str] = getattr(adapter, "credential_files", ())
    if files and not await asyncio.to_thread(has_login, home, files):
        # Some CLIs take an empty file for a login.
        return AuthStatus(installed=True, authenticated=False, error="the login was not completed: log in again")
    if probe is not None:
        return await probe.probe(adapter=adapter, home=home)
    env = adapter.build_env(creds=Credentials(home=home), home=home)
    status: AuthStatus = await adapter.probe_auth(env)
    return status


def disconnect(*, plugin_storage: Path, user_id: str, backend: str) -> None:
    """Remove the HOME with all that is in it; fine when there is none.

    No run may be using it.  Raises InvalidRequestError, StorageError.
    """
    check_names(user_id, backend)
    try:
        with opened(plugin_storage, (_HOMES, user_id)) as fd:
            remove_at(fd, backend)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(plugin_storage / _HOMES / user_id / backend, error) from error


def existing_home(plugin_storage: Path, key: HomeKey) -> Path | None:
    """The HOME if it was made already.  Raises InvalidRequestError, StorageError (a symbolic link in its place)."""
    check_names(*key)
    home = plugin_storage / _HOMES / key.user_id / key.backend
    try:
        with opened(plugin_storage, (_HOMES, *key)):
            return home
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(home, error) from error


def has_login(home: Path, files: Sequence[str]) -> bool:
    """Whether at least one of the ``files`` holds something that can be a login."""
    try:
        with opened(home) as fd:
            return any(can_be_login(read_file(fd, file, limit=LOGIN_FILE_MAX)) for file in files)
    except OSError:
        return False


def can_be_login(data: bytes | None) -> bool:
    """Whether the content of a login's file is whole: a JSON object with something in it."""
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and bool(found)


def check_names(user_id: str, backend: str) -> None:
    """Raises InvalidRequestError for what must not become part of a path."""
    if _USER.fullmatch(user_id) is None:
        raise InvalidRequestError(f"this user id is neither a plain name nor an e-mail address: {USER_ID_WORDS}")
    if _PLAIN.fullmatch(backend) is None:
        raise InvalidRequestError("this backend is no plain name: letters, digits, '.', '_' and '-', at most 64")


def storage_error(path: Path, error: OSError) -> StorageError:
    """What stands in the way of ``path``."""
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return StorageError(f"{path} cannot be used: a part of it is a symbolic link or no directory")
    return StorageError(f"{path} cannot be used: {error.strerror or error}")


class Subscription:
    """The credential source of a user's own subscription, where the backend's mode is ``byo_subscription``."""

    source: Final[SourceName] = "byo_subscription"

    def __init__(self, homes: SubscriptionHomes, *, has_login: Callable[[str], bool] = lambda _: True) -> None:
        """``has_login``: whether there is a command with which users of a backend log in."""
        self._homes = homes
        self._has_login = has_login

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The primed HOME and no key: the CLI logs in by itself."""
        if config.mode != self.source:
            return None
        home = await self._homes.usable(HomeKey(user_id, backend))
        return None if home is None else Resolved(source=self.source, home=home, extra_env=dict(config.extra_env))

    def hint(self, backend: str) -> str | None:
        """What to type, where there is something to type."""
        if not self._has_login(backend):
            return None
        return f"log in with a subscription: podmentor login {backend} (needs mode: byo_subscription for this backend)"
