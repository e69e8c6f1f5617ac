"""Which repos an agent can be given, and where the state directory may be: plain checks, each with its remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.system.mounts import mount_of, parse_mounts

OPTION_CHARACTERS: Final = ":,\\"
"""They separate or escape overlay mount options, and Podman passes paths on in such options."""
FOREIGN_FILE_SYSTEMS: Final = frozenset(
    {
        "overlay",
        "aufs",
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "afs",
        "ceph",
        "virtiofs",
        "vfat",
        "exfat",
        "ntfs",
        "ntfs3",
        "ecryptfs",
    }
)
"""Where the kernel refuses an overlay's upper directory, or takes one and loses what is written there."""
_SERVED: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "virtiofs"})
_PROBE: Final = "user.podmentor.probe"


def checked_source(source: Path, *, forbidden: tuple[Path, ...], mode: str) -> Path:
    """The repo's real path.  ``forbidden``: directories of ours that it may neither contain nor be in.

    Raises InvalidRequestError, which says what is wrong and what to do.
    """
    if not source.is_absolute():
        raise InvalidRequestError(f"the repo must be an absolute path, not {str(source)!r}")
    if "\0" in str(source):
        raise InvalidRequestError("the repo's path has a NUL in it")
    try:
        resolved = source.resolve(strict=True)
    except FileNotFoundError:
        raise InvalidRequestError(f"the repo {source} does not exist") from None
    except PermissionError:
        raise InvalidRequestError(f"the repo {source} cannot be reached by the user {_me()}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links, up to Python 3.12
        raise InvalidRequestError(f"the repo {source} cannot be used: {error}") from error
    if not resolved.is_dir():
        raise InvalidRequestError(f"the repo {source} is not a directory")
    needed = os.R_OK | os.X_OK | (os.W_OK if mode == "direct" else 0)
    if not os.access(resolved, needed):
        what = "read and written" if mode == "direct" else "read"
        raise InvalidRequestError(
            f"the repo {resolved} cannot be {what} by the user {_me()}: change its owner or permissions"
        )
    for ours in (directory.resolve() for directory in forbidden):
        if resolved.is_relative_to(ours) or ours.is_relative_to(resolved):
            raise InvalidRequestError(
                f"the repo {resolved} and podmentor's own directory {ours} may not contain one another: "
                "use another repo, or move storage.state_dir or storage.runtime_dir in podmentor.yaml"
            )
    if mode == "overlay" and (bad := _option_characters(resolved)):
        raise InvalidRequestError(
            f"the repo's path {str(resolved)!r} contains {bad}, which an overlay mount cannot take: "
            "rename the directory, or bind-mount it to another path, or use the workspace mode 'direct' or 'readonly'"
        )
    return resolved


def check_overlay_home(directory: Path) -> None:
    """Whether upper directories can live in ``directory``, which exists.  Raises StorageError with the remedy."""
    remedy = "set storage.state_dir in podmentor.yaml to a directory on a local disk (ext4, xfs or btrfs)"
    if bad := _option_characters(directory):
        raise StorageError(
            f"the state directory {str(directory)!r} contains {bad}, which an overlay cannot take: {remedy}"
        )
    kind = file_system_of(directory)
    if kind in FOREIGN_FILE_SYSTEMS or kind.startswith("fuse"):
        raise StorageError(f"the state directory {directory} is on {kind}, where an overlay cannot be kept: {remedy}")
    try:
        os.setxattr(directory, _PROBE, b"y")
        os.removexattr(directory, _PROBE)
    except OSError as error:
        raise StorageError(
            f"the state directory {directory} ({kind}) takes no extended attributes ({error.strerror}), "
            f"which a rootless overlay needs: {remedy}"
        ) from error


def has_foreign_clock(repo: Path) -> bool:
    """Whether the time stamps of files there may come from another machine's clock."""
    kind = file_system_of(repo)
    return kind in _SERVED or kind.startswith("fuse")


def file_system_of(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that ``path`` is on; empty when it cannot be found."""
    table = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    mount = mount_of(path.resolve(), parse_mounts(table))
    return "" if mount is None else mount.kind


def _option_characters(path: Path) -> str:
    return " and ".join(repr(c) for c in OPTION_CHARACTERS if c in str(path))


def _me() -> str:
    return str(os.geteuid())
