"""Where state and sockets live, and that these places are ours alone.

State holds homes, keys and transcripts; the runtime directory holds the sockets that act for us.  Both are 0700, owned
by us and no symbolic links, or nothing is started.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from orchestrator.config.models import Config, Paths
from orchestrator.errors import ConfigError
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes

LONGEST_SOCKET = f"{'x' * 36}/gateway.sock"
"""The longest path that is made below the runtime directory: a run's id and its gateway socket."""


def resolve_paths(config: Config, *, env: Mapping[str, str] | None = None) -> Paths:
    """Decide on the directories, make them (0700) and check them.  Raises ConfigError."""
    env = os.environ if env is None else env
    paths = plan_paths(config, env=env)
    shared_tmp = config.storage.runtime_dir is None and not _absolute_in(env, "XDG_RUNTIME_DIR")
    _own_directory(paths.state_dir, must_be_private=False)
    _own_directory(paths.runtime_dir, must_be_private=shared_tmp)
    return paths


def plan_paths(config: Config, *, env: Mapping[str, str] | None = None) -> Paths:
    """Decide on the directories without touching them.

    State: the configuration, ``$PODMENTOR_STATE``, ``$XDG_STATE_HOME/podmentor``, ``~/.local/state/podmentor``.
    Runtime: the configuration, ``$XDG_RUNTIME_DIR/podmentor``, ``/tmp/podmentor-<uid>``; with a state directory other
    than the user's usual one the last part gets a suffix, so that two services of one user do not meet in one socket.
    Raises ConfigError.
    """
    env = os.environ if env is None else env
    usual = _usual_state(env)
    chosen = config.storage.state_dir
    if chosen is None and env.get("PODMENTOR_STATE"):
        chosen = Path(env["PODMENTOR_STATE"]).expanduser().absolute()
    state = chosen or usual
    if state is None:
        raise ConfigError("no place for state: set HOME, or storage.state_dir in podmentor.yaml")
    runtime = config.storage.runtime_dir or _runtime_base(env).with_name(
        _runtime_base(env).name + ("" if state == usual else "-" + hashlib.sha256(os.fsencode(state)).hexdigest()[:8]),
    )
    _refuse_long(runtime)
    _refuse_in_repo(state, config)
    return Paths(state_dir=state, runtime_dir=runtime)


def _absolute_in(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name, "")
    return Path(value) if value.startswith("/") else None


def _usual_state(env: Mapping[str, str]) -> Path | None:
    if base := _absolute_in(env, "XDG_STATE_HOME"):
        return base / "podmentor"
    if home := _absolute_in(env, "HOME"):
        return home / ".local" / "state" / "podmentor"
    return None


def _runtime_base(env: Mapping[str, str]) -> Path:
    if base := _absolute_in(env, "XDG_RUNTIME_DIR"):
        return base / "podmentor"
    return Path(f"/tmp/podmentor-{os.geteuid()}")  # noqa: S108  # checked to be ours and 0700 before use


def _refuse_long(runtime: Path) -> None:
    length = socket_path_bytes(runtime / LONGEST_SOCKET)
    if length > SOCKET_PATH_MAX:
        room = SOCKET_PATH_MAX - len(LONGEST_SOCKET) - 1
        raise ConfigError(
            f"{runtime} is too long for sockets inside it ({length} bytes, {SOCKET_PATH_MAX} are possible): "
            f"set storage.runtime_dir to a path of at most {room} bytes",
        )


def _refuse_in_repo(state: Path, config: Config) -> None:
    real = state.resolve()
    for name, repo in config.repos.items():
        if real.is_relative_to(repo.resolve()):
            raise ConfigError(
                f"the state directory {state} lies inside the repo {name} ({repo}): an agent would see the service's "
                "own files; set storage.state_dir to a place outside",
            )


def _own_directory(path: Path, *, must_be_private: bool) -> None:
    """Make ``path``, or check the one that is there.  ``must_be_private``: a wider mode is refused, not mended."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link; name the directory itself") from None
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from None
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise ConfigError(f"{path} belongs to another user (uid {found.st_uid}); it is not used")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077 and must_be_private:
            raise ConfigError(f"{path} is open to others (mode {mode:o}); remove it, or chmod 700 it if it is yours")
        if mode != 0o700:
            os.fchmod(handle, 0o700)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made private: {error.strerror}") from None
    finally:
        os.close(handle)
