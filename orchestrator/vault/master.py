"""The master key: where it is read from, how it is made, and how one replaces another without a moment of loss.

During a rotation the file with the new key lies beside the old one (``.new``), and for an instant the old one too
(``.old``).  Which of them counts is what the database says, so a crash at any point leaves a vault that opens.  All
functions block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.config.environment import VaultPlace
from orchestrator.errors import ConflictError, StorageError, VaultUnavailableError
from orchestrator.system.files import UntrustedFileError, create_private, read_private, sync_directory
from orchestrator.vault.sealed import MasterKey

_MAX_BYTES: Final = 4096


class KeySource:
    """The keys at one place."""

    def __init__(self, place: VaultPlace) -> None:
        self.place = place
        self._known: dict[str, MasterKey] = {}

    @classmethod
    def find(cls, place: VaultPlace) -> KeySource | None:
        """None: no vault is configured.  Nothing has been read yet."""
        there = place.source == "environment" or any(os.path.lexists(path) for path in _files(place.key_file))
        return cls(place) if there or place.required else None

    def current(self) -> MasterKey:
        """The key to begin with, when nothing has been sealed.  Raises VaultUnavailableError."""
        if self.place.source == "environment":
            return MasterKey.from_text(self.place.value or "", where=str(self.place))
        return read_key(self.place.key_file)

    def by_id(self, key_id: str) -> MasterKey | None:
        """The key with this id; files are read again when it is not known yet (another process may have rotated).

        Raises VaultUnavailableError when the only key there is cannot be read.
        """
        if key_id not in self._known:
            self._known |= {key.key_id: key for key in self._candidates()}
        return self._known.get(key_id)

    def _candidates(self) -> Iterator[MasterKey]:
        place = self.place
        if place.source == "environment":
            yield self.current()
            if place.next_value:
                yield self.next()
            return
        found = [key for path in _files(place.key_file) if (key := _peek(path)) is not None]
        yield from found or [self.current()]  # the latter raises, in the right words

    def next(self) -> MasterKey:
        """The key that the environment names for a rotation.  Raises VaultUnavailableError."""
        if not self.place.next_value:
            raise VaultUnavailableError(
                f"the key comes from ${self.place.variable}: put the new one (podmentor vault init --print) into "
                f"${self.place.next_variable}, for the running service too, and rotate again"
            )
        return MasterKey.from_text(self.place.next_value, where=f"${self.place.next_variable}")

    def stage(self, key: MasterKey) -> None:
        """Put the key of a rotation beside the one in use.  Only with the database's write lock held."""
        if self.place.source == "file":
            new = _files(self.place.key_file)[1]
            new.unlink(missing_ok=True)  # of a rotation that never got to its commit
            write_key(new, key)

    def settle(self, key_id: str) -> None:
        """Give the key ``key_id`` its place and remove what a rotation left; only with the write lock held."""
        if self.place.source == "environment":
            return
        main, new, old = _files(self.place.key_file)
        if not new.exists() and not old.exists():
            return
        if _is(new, key_id):
            if main.exists():
                main.replace(old)
            new.replace(main)
            sync_directory(main.parent)
        if _is(main, key_id):
            new.unlink(missing_ok=True)
            old.unlink(missing_ok=True)
            sync_directory(main.parent)

    @property
    def unsettled(self) -> bool:
        """Whether a rotation was cut short and has left a file."""
        return self.place.source == "file" and any(path.exists() for path in _files(self.place.key_file)[1:])


def _files(main: Path) -> tuple[Path, Path, Path]:
    return main, main.with_name(main.name + ".new"), main.with_name(main.name + ".old")


def _peek(path: Path) -> MasterKey | None:
    """The key in a file that may be missing, or cut by a crash."""
    try:
        return read_key(path)
    except VaultUnavailableError:
        return None


def _is(path: Path, key_id: str) -> bool:
    return (key := _peek(path)) is not None and key.key_id == key_id


def read_key(path: Path) -> MasterKey:
    """The key in a file that is ours alone.  Raises VaultUnavailableError."""
    try:
        text = read_private(path, limit=_MAX_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        raise VaultUnavailableError(f"there is no {path}: `podmentor vault init` makes the vault's key") from None
    except UntrustedFileError as error:
        raise VaultUnavailableError(f"the vault's key {path} is not used: {error}") from None
    except OSError as error:
        raise VaultUnavailableError(f"the vault's key {path} cannot be read: {error.strerror}") from None
    return MasterKey.from_text(text, where=str(path))


def write_key(path: Path, key: MasterKey) -> None:
    """Make the file (0600), never over another; on disk when this returns.  Raises ConflictError, StorageError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_private(path, f"{key.to_text()}\n".encode())
    except FileExistsError:
        raise ConflictError(f"{path} is there already") from None
    except OSError as error:
        raise StorageError(f"cannot write the vault's key {path}: {error.strerror}") from None
