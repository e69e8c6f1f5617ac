"""One build at a time in the store of a user's Podman, whatever the state directories are."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.errors import ImageBuildError
from orchestrator.system.locks import try_lock

_POLL_SECONDS = 0.25


def lock_path(state_dir: Path) -> Path:
    """One for all that a user's Podman holds; where there is no place for that, one for the state directory.

    Whoever is stopped in a build, or prunes, removes the working containers that are there: they must not be those of a
    build that goes on, in another state directory or checkout.
    """
    shared = Path(f"/run/user/{os.geteuid()}")
    return (shared if os.access(shared, os.W_OK) else state_dir) / "podmentor-images.lock"


@asynccontextmanager
async def build_lock(path: Path, *, timeout: float, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold the lock file; ``on_wait`` is called once when somebody else has it.

    The kernel releases it when the process ends, however it ends.  Raises ImageBuildError after ``timeout`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    waiting = False
    while (descriptor := _try(path)) is None:  # a build takes minutes, so asking now and then is cheap
        if not waiting:
            on_wait()
            waiting = True
        if asyncio.get_running_loop().time() > deadline:
            raise ImageBuildError(f"another build still holds {path} after {timeout:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _try(path: Path) -> int | None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock(path)
    except OSError as error:
        raise ImageBuildError(f"the lock cannot be used: {path}: {error.strerror}") from error
