"""The part of the composition root that a service and a login share: directories, their lock, the container runtime."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from orchestrator.config.environment import process_environment
from orchestrator.config.models import Config, Paths
from orchestrator.contract.metrics import NO_METRICS, Metrics
from orchestrator.doctor import working_runtime
from orchestrator.errors import ConflictError, StorageError
from orchestrator.podman.runtime import PodmanRuntime
from orchestrator.podman.service import podman_environment
from orchestrator.runs.limits.free_space import refuse_full
from orchestrator.system.locks import try_lock

__all__ = ["instance_id", "make_directories", "owned", "podman_runtime"]

log = logging.getLogger(__name__)


async def podman_runtime(
    config: Config,
    paths: Paths,
    instance: str,
    stack: AsyncExitStack,
    *,
    image_tags: Mapping[str, str] | None = None,
    metrics: Metrics = NO_METRICS,
) -> PodmanRuntime:
    """The runtime, started; ``stack`` closes it.  ``image_tags``: images to use instead of the current ones."""
    runtime = PodmanRuntime(
        config=config.podman,
        runtime_dir=paths.runtime_dir,
        instance=instance,
        oci_runtime=await working_runtime(config=config, paths=paths),
        owned_roots=(paths.state_dir, paths.runtime_dir),
        image_tags=image_tags,
        metrics=metrics,
        service_env=podman_environment(process_environment()),  # Podman and conmon need no keys
    )
    stack.push_async_callback(runtime.aclose)
    await runtime.start()
    return runtime


def make_directories(paths: Paths) -> None:
    """State and runtime directory, for nobody but us.  Raises StorageError."""
    try:
        for directory in (paths.state_dir, paths.runtime_dir, paths.state_dir / "runs", paths.state_dir / "subagents"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_full(paths.state_dir)
    except OSError as error:
        raise StorageError(f"cannot make {error.filename}: {error.strerror}") from error


@contextmanager
def owned(lock_file: Path) -> Iterator[None]:
    """Hold the state directory.  The lock goes with the process, however it ends.  Raises ConflictError."""
    if (descriptor := try_lock(lock_file)) is None:
        holder = lock_file.read_bytes()[:32].decode("ascii", "replace").strip()
        raise ConflictError(
            f"another podmentor service (process {holder or 'unknown'}) uses {lock_file.parent}; stop it, or give "
            "this one another state directory (--state)"
        )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def instance_id(state_dir: Path) -> str:
    """A label that only this state directory's containers have, made once: 32 hex digits."""
    path = state_dir / "instance"
    try:
        with path.open("x") as file:
            file.write(uuid.uuid4().hex)
    except FileExistsError:
        log.debug("known state directory")
    return path.read_text().strip()
