"""The container runtime, as the supervisor sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

LABEL_RUN = "podmentor.run_id"
LABEL_INSTANCE = "podmentor.instance"
"""Value: the service's instance id (one per state directory); containers of other instances are never touched."""
LABEL_SANDBOX = "podmentor.sandbox_id"
LABEL_BACKEND = "podmentor.backend"

IMAGE_REPOSITORY = "localhost/podmentor"
"""An image of a backend is IMAGE_REPOSITORY/<backend>:<cli version>-<first 12 of the recipe hash>; the tag ``current``
points at the one that new runs use."""
LABEL_IMAGE = "podmentor.image"
LABEL_CLI_VERSION = "podmentor.cli_version"
LABEL_RECIPE = "podmentor.recipe"

CONTROL_DIR = "/run/podmentor"
"""Where the control directory is mounted (read-only) in every container."""
WORKSPACE_DIR = "/workspace"
HOME_DIR = "/home/agent"
GATEWAY_PORT = 8080
"""127.0.0.1 port inside the container that the entry relays to ``gateway.sock``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceMount:
    """How the repo appears at ``WORKSPACE_DIR``: ``overlay`` needs ``upper`` and ``work`` (same file system)."""

    mode: Literal["overlay", "direct", "readonly"]
    source: Path
    upper: Path | None = None
    work: Path | None = None
    target: Path | None = None
    """Where changes are applied, when that is not ``source`` (a private copy of it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything that a container is made from.  Nothing in it is secret but the run's own token in ``env``."""

    sandbox_id: str
    run_id: str
    instance: str
    backend: str
    image_id: str
    argv: list[str]
    env: Mapping[str, str] = field(repr=False)
    tier: Literal[0, 1]
    workspace: WorkspaceMount
    home: Path
    control_dir: Path
    log_path: Path
    memory_max_bytes: int
    memory_by_cgroup: bool
    """Whether the runtime should set a memory limit (it would be ignored where no controller is delegated)."""
    pids_max: int
    cpus: float | None
    kill_after_seconds: int
    """Last resort: conmon itself ends the container after so long, even when no service is there any more."""
    host_network: bool = False
    """Only with tier 0 and only by explicit configuration."""
    interactive: bool = False
    """For a person at a terminal: it has one, and nothing of it is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSandbox:
    """A started container: ``conmon_pid`` ends when its output is completely written and its exit code known."""

    container_id: str
    conmon_pid: int
    init_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxExit:
    """How a container ended.  ``exit_code`` None: nobody knows (it is gone, or the machine was restarted)."""

    exit_code: int | None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSandbox:
    """A container of this instance, found by its label."""

    container_id: str
    run_id: str
    sandbox_id: str
    state: Literal["created", "running", "exited", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """A built image."""

    image_id: str
    tag: str
    backend: str
    cli_version: str
    recipe: str
    """Recipe hash."""
    size_bytes: int
    created: str


class Runtime(Protocol):
    """Creates, watches and removes containers.  Every call is bounded in time and safe to cancel."""

    @property
    def memory_by_cgroup(self) -> bool:
        """Whether a memory limit given to a container holds by itself; else the watchdog has to enforce it."""
        ...

    @property
    def enforcement(self) -> Mapping[str, str]:
        """How the limits that containers are given are kept, by name: ``memory_max_bytes`` cgroup or watchdog,
        ``pids_max`` cgroup, rlimit or none, ``cpus`` cgroup or none."""
        ...

    async def start(self) -> None:
        """Find or start the Podman service and probe it.  Raises RuntimeUnavailableError."""
        ...

    async def aclose(self) -> None:
        """Let go of the Podman service (and end it, when it was started here).  Containers go on."""
        ...

    async def create(self, spec: SandboxSpec) -> str:
        """Create the container; its id.  Raises SandboxError, ImageMissingError."""
        ...

    async def start_sandbox(self, container_id: str) -> StartedSandbox:
        """Start a created container."""
        ...

    async def attach(self, container_id: str) -> StartedSandbox | SandboxExit:
        """Take up a container that another process started.  Raises SandboxGoneError."""
        ...

    async def wait(self, sandbox: StartedSandbox) -> SandboxExit:
        """Wait (without polling, as long as it takes) until the container has ended and its log is complete."""
        ...

    async def signal(self, container_id: str, signal: Literal["INT", "TERM", "KILL"]) -> None:
        """Signal the container's first process; KILL ends every process of it, whether the engine answers or not.

        Nothing happens when it has ended or is gone.  Raises SandboxError."""
        ...

    async def remove(self, container_id: str) -> None:
        """Kill what still runs and remove the container.  Done when it returns; fine when it was gone already."""
        ...

    async def remove_run(self, run_id: str, *, sandbox_id: str | None) -> None:
        """``remove`` whatever there is of a run, also what a cancelled ``create`` or ``start_sandbox`` still makes.

        ``sandbox_id``: the newest one that it got, in case the engine was killed while it made that."""
        ...

    async def find(self) -> list[FoundSandbox]:
        """All containers of this instance."""
        ...

    async def image(self, backend: str) -> ImageRef:
        """The current image of a backend.  Raises ImageMissingError with the command that builds it."""
        ...

    async def delete_tree(self, path: Path) -> None:
        """Remove a directory of ours that may hold files of subordinate ids (overlay leftovers)."""
        ...
