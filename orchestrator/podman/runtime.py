"""The Runtime contract on rootless Podman (4.3 to 5.x)."""

import asyncio
import contextlib
import logging
import os
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from podman.api.path_utils import get_runtime_dir
from tenacity.wait import wait_base

from orchestrator.config.models import PodmanConfig
from orchestrator.contract.metrics import NO_METRICS, Metrics
from orchestrator.contract.sandbox import (
    LABEL_INSTANCE,
    LABEL_RUN,
    FoundSandbox,
    ImageRef,
    Runtime,
    SandboxExit,
    SandboxSpec,
    StartedSandbox,
)
from orchestrator.contract.seccomp import narrowed_text
from orchestrator.errors import (
    RuntimeUnavailableError,
    SandboxError,
    SandboxGoneError,
    TransientSandboxError,
)
from orchestrator.podman import delete_tree as trees
from orchestrator.podman import host_capabilities, oci_state
from orchestrator.podman.client import LibpodClient
from orchestrator.podman.containers import Containers
from orchestrator.podman.exits import NO_CODE, ExitWatch, Inits, has_conmon, is_conmon
from orchestrator.podman.inspect import ContainerState
from orchestrator.podman.service import PodmanService
from orchestrator.podman.shielded import Unbroken
from orchestrator.podman.spec import HostFacts, create_payload
from orchestrator.podman.transport import Transport, object_body
from orchestrator.system import processes
from orchestrator.system.files import write_atomic
from orchestrator.system.processes import HeldProcess, most_files

log = logging.getLogger(__name__)

START_SECONDS: Final = 40.0
INFO_SECONDS: Final = 45.0
PROCESS_SECONDS: Final = 10.0
"""After the removal, until the container's conmon has ended by itself."""
REASON_SECONDS: Final = 3.0
"""For Podman to say whether the memory limit ended the container."""
SECCOMP_FILE: Final = "seccomp.json"
NOT_STARTED: Final = frozenset({"created", "configured", "initialized"})


class PodmanRuntime(Runtime):
    """Creates, watches and removes the containers of one instance."""

    def __init__(
        self,
        *,
        config: PodmanConfig,
        runtime_dir: Path,
        instance: str,
        oci_runtime: str | None,
        owned_roots: Sequence[Path] = (),
        image_tags: Mapping[str, str] | None = None,
        service_env: dict[str, str] | None = None,
        user_socket: Path | None = None,
        retry_wait: wait_base | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """``owned_roots``: where ``delete_tree`` may remove.  ``image_tags``: for these backends the image with this
        tag, not the current one.  ``service_env``: Podman's environment (see ``service.podman_environment``);
        None hands ours on.  ``user_socket``: None looks in XDG_RUNTIME_DIR."""
        self._config = config
        self._instance = instance
        self._dir = runtime_dir
        self._roots = tuple(owned_roots)
        self._tags = dict(image_tags or {})
        self._env = service_env
        self._oci_runtime = oci_runtime
        self._work = Unbroken(slots=config.start_concurrency)
        self._transport = Transport(workers=config.start_concurrency * 2 + 4)
        self._user_dir = Path(get_runtime_dir())
        self._service = PodmanService(
            self._transport,
            runtime_dir=runtime_dir,
            configured=config.socket,
            user_socket=user_socket or self._user_dir / "podman" / "podman.sock",
            oci_runtime=oci_runtime,
            env=service_env,
        )
        self._client = LibpodClient(self._service, self._transport, wait=retry_wait, metrics=metrics)
        self._containers = Containers(self._client, remove=self._remove)
        self._exits = ExitWatch()
        self._conmons: dict[str, int] = {}
        self._inits = Inits()
        self._runs: dict[str, str] = {}
        """For each container made here its run."""
        self._host = HostFacts()

    @property
    def memory_by_cgroup(self) -> bool:
        """Whether the memory controller is there for containers (cgroup v2, delegated).  False before ``start``."""
        return "memory" in self._host.controllers

    @property
    def enforcement(self) -> Mapping[str, str]:
        """How limits are kept, by name.  To be asked after ``start``."""
        return host_capabilities.enforcement(self._host)

    async def start(self) -> None:
        """Find or start the service, and learn what the machine can do.  Raises RuntimeUnavailableError."""
        try:
            reply = await self._client.call("GET", "/info", timeout=INFO_SECONDS)
        except TransientSandboxError as error:
            raise RuntimeUnavailableError(error.message) from None
        info = object_body(reply, "info")
        host = host_capabilities.host_facts(info, oci_runtime=self._oci_runtime, kernel=os.uname().release)
        profile = await asyncio.to_thread(write_profile, host_capabilities.seccomp_profile(info), self._dir)
        self._host = replace(host, seccomp_profile=profile, open_files=most_files())
        if self._config.require_cgroup_limits and (lacking := {"memory", "pids"} - self._host.controllers):
            raise RuntimeUnavailableError(
                f"podman.require_cgroup_limits is set, but containers cannot be limited by cgroup here (without: "
                f"{', '.join(sorted(lacking))}): it needs cgroup v2 and `Delegate=memory pids cpu` for user@.service"
            )

    async def aclose(self) -> None:
        """Let the clean-ups that are under way finish (bounded), then end the service, if it is ours."""
        await self._exits.aclose()
        await self._work.aclose()
        self._inits.aclose()
        await self._service.aclose()
        self._transport.aclose()

    # --- starting --------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> str:
        """Create the container.  Cancelled: the call is finished in the background and what it made is removed."""
        payload = create_payload(spec, host=self._host)
        work = self._containers.create(payload, sandbox_id=spec.sandbox_id)

        async def discard(made: str | None) -> None:
            if made is not None:
                await self._remove(made)

        container_id = await self._work.run_in_slot(work, name="create", key=spec.run_id, discard=discard)
        self._runs[container_id] = spec.run_id
        return container_id

    async def start_sandbox(self, container_id: str) -> StartedSandbox:
        """Start a created container (never one that has already run).  Cancelled: what starts is killed, and removed
        once Podman has answered."""

        async def discard(_: StartedSandbox | None) -> None:
            await self._remove(container_id)

        return await self._work.run_in_slot(
            self._start(container_id),
            name="start",
            key=self._runs.get(container_id, container_id),
            discard=discard,
            meanwhile=lambda: self._inits.kill(container_id),
        )

    async def _start(self, container_id: str) -> StartedSandbox:
        async for attempt in self._client.attempts():
            with attempt:
                # Podman starts an ended container anew: after a failure, look before asking again.
                first = attempt.retry_state.attempt_number == 1
                if first or (await self._containers.state(container_id)).status in NOT_STARTED:
                    await self._client.once("POST", f"/containers/{container_id}/start", timeout=START_SECONDS)
        state = await self._containers.state(container_id)
        self._hold(container_id, state)
        return StartedSandbox(container_id=container_id, conmon_pid=state.conmon_pid, init_pid=state.pid)

    def _hold(self, container_id: str, state: ContainerState) -> None:
        self._conmons[container_id] = state.conmon_pid
        self._inits.hold(container_id, state.pid)

    # --- watching --------------------------------------------------------------------------------------------------

    async def attach(self, container_id: str) -> StartedSandbox | SandboxExit:
        """Take up a container that another process started.  Raises SandboxGoneError."""
        state = await self._containers.state(container_id)
        if self._conmon_lives(container_id, state):
            self._hold(container_id, state)
            return StartedSandbox(container_id=container_id, conmon_pid=state.conmon_pid, init_pid=state.pid)
        return await self._truth(container_id, state)

    async def wait(self, sandbox: StartedSandbox) -> SandboxExit:
        """Until the container has ended.  ``exit_code`` None when nobody can know it."""
        container_id, conmon_pid = sandbox.container_id, sandbox.conmon_pid
        while (code := await self._exits.wait(container_id, conmon_pid)) == NO_CODE:
            if not await asyncio.to_thread(has_conmon, container_id):
                await self._inits.kill(container_id)  # its output is lost from here on
            try:
                state = await self._containers.state(container_id)
            except SandboxError:  # it is gone, or nobody can tell
                await self._inits.kill(container_id)
                return SandboxExit(exit_code=None)
            if not self._conmon_lives(container_id, state):
                return await self._truth(container_id, state)
            conmon_pid = state.conmon_pid
        return SandboxExit(exit_code=code, oom_killed=code == 128 + 9 and await self._oom_killed(container_id))

    async def _oom_killed(self, container_id: str) -> bool:
        try:
            async with asyncio.timeout(REASON_SECONDS):
                return (await self._containers.state(container_id)).oom_killed
        except (SandboxError, TimeoutError):
            return False  # the exit code is known, and that matters more

    def _conmon_lives(self, container_id: str, state: ContainerState) -> bool:
        held = self._conmon(container_id, state.conmon_pid) if state.live else None
        if held is not None:
            held.close()
        return held is not None

    async def _truth(self, container_id: str, state: ContainerState) -> SandboxExit:
        """What became of a container whose conmon has ended.  One that still runs has lost its output: end it."""
        if state.ended:
            return SandboxExit(exit_code=state.exit_code, oom_killed=state.oom_killed)
        if state.live:
            log.warning("container %s has lost its conmon: killed", container_id[:12])
            self._inits.hold(container_id, state.pid)
            await self.signal(container_id, "KILL")
            await self._inits.kill(container_id)
        return SandboxExit(exit_code=None)

    async def signal(self, container_id: str, signal: Literal["INT", "TERM", "KILL"]) -> None:
        """Signal the container's first process; KILL ends all of them.  Nothing happens when it has ended or is gone.

        Podman is asked only when no such process is found, and not for long.
        """
        if await self._inits.send(container_id, signals.Signals[f"SIG{signal}"]):
            return
        await self._containers.signal(container_id, signal)

    # --- removing --------------------------------------------------------------------------------------------------

    async def remove(self, container_id: str) -> None:
        """Kill and remove.  When it returns neither the container nor a process of it is left; when it raises, only
        the processes are gone."""
        await self._work.run(self._remove(container_id), name="remove")

    async def remove_run(self, run_id: str, *, sandbox_id: str | None) -> None:
        """Remove all containers of a run, also those that a cancelled ``create`` or ``start_sandbox`` still makes, and
        the half of one that was being made in ``sandbox_id``'s name when Podman was killed."""
        await self._work.settled(run_id)
        for found in await self._containers.find(f"{LABEL_RUN}={run_id}"):
            await self.remove(found.container_id)
        if sandbox_id is not None:
            await self._containers.forget_halves(sandbox_id)

    async def _remove(self, container_id: str) -> None:
        if not await self._inits.kill(container_id):
            log.error("processes of container %s do not end although they were killed", container_id[:12])
        with contextlib.suppress(SandboxGoneError):
            state = await self._containers.state(container_id)
            self._conmons[container_id] = state.conmon_pid or self._conmons.get(container_id, 0)
        conmon = self._conmon(container_id, self._conmons.get(container_id, 0))
        try:
            await self._containers.delete(container_id)
            if conmon is not None:
                await processes.ensure_end(conmon, seconds=PROCESS_SECONDS)
        finally:
            if conmon is not None:
                conmon.close()
        await oci_state.forget(container_id, user_dir=self._user_dir, env=self._env)
        self._conmons.pop(container_id, None)
        self._runs.pop(container_id, None)
        self._inits.drop(container_id)

    async def delete_tree(self, path: Path) -> None:
        """Remove a directory below one of ``owned_roots``.  Raises StorageError."""
        await trees.delete_tree(path, roots=self._roots, env=self._env)

    # --- asking ----------------------------------------------------------------------------------------------------

    async def find(self) -> list[FoundSandbox]:
        """All containers of this instance."""
        return await self._containers.find(f"{LABEL_INSTANCE}={self._instance}")

    async def image(self, backend: str) -> ImageRef:
        """The image that ``current`` points at.  Raises ImageMissingError with the command that builds it."""
        return await self._containers.image(backend, tag=self._tags.get(backend, "current"))

    @staticmethod
    def _conmon(container_id: str, pid: int) -> HeldProcess | None:
        return HeldProcess.open(pid, lambda pid: is_conmon(pid, container_id))


def write_profile(source: str, directory: Path) -> str | None:
    """Write the narrowed form of the seccomp profile at ``source`` into ``directory``; its path.

    None, and a warning in the log: there is no such profile that can be read, and containers get Podman's own.
    """
    path = directory / SECCOMP_FILE
    try:
        text = narrowed_text(Path(source).read_text(encoding="utf-8"))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, text.encode(), durable=False)  # somebody may be reading the one in place
    except (OSError, ValueError) as error:
        log.warning("the seccomp profile %s cannot be narrowed (%s): containers get it as it is", source, error)
        return None
    return str(path)
