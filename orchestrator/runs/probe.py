"""Whether a backend's CLI is there and has something to log in with, asked of the CLI itself in a container.

A probe is a container like a run's (same image, same hardening, no network, no provider), but no run: nothing of it is
journalled, and nothing of it is left.  Its id can be told from that of any run, so that the next start can remove what
a crash has left.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Resolved
from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.sandbox import ImageRef, SandboxExit, SandboxSpec
from orchestrator.contract.types import AuthStatus
from orchestrator.contract.workspace import Prepared
from orchestrator.errors import AuthRequiredError, ImageMissingError, PodmentorError, SandboxError, UnknownBackendError
from orchestrator.framing import CriFramer
from orchestrator.runs.deps import Deps
from orchestrator.runs.launch import ENTRY, env_of, make_log
from orchestrator.runs.limits import resolve_limits

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 5.0
"""Once the container runs."""
AT_ONCE: Final = 2
"""A probe costs as much as the start of a run."""
WAIT_SECONDS: Final = 60.0
"""For a turn, and for the container to start."""
REMOVE_SECONDS: Final = 30.0
OUTPUT_BYTES: Final = 64 * 1024
PLACEHOLDER: Final = "podmentor-probe"
"""In place of a run's token: a probe asks no provider."""
_PREFIX: Final = "70726f6265000"
"""``probe`` in hex, and a digit that no run's id (a version 4 UUID) has in its place."""


class Prober:
    """Probes; ``sweep`` before the first one."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def probe(self, backend: str, *, user_id: str) -> AuthStatus:
        """Ask.  Raises UnknownBackendError; SandboxError and StorageError when no container can be had."""
        adapter = self._deps.adapters.get(backend)
        if adapter is None:
            known = ", ".join(sorted(self._deps.adapters)) or "none"
            raise UnknownBackendError(f"there is no backend {backend!r}; enabled: {known}")
        image: ImageRef | None = None
        if adapter.transport == "subprocess":
            try:
                image = await self._deps.runtime.image(adapter.image or adapter.name)
            except ImageMissingError as error:
                return AuthStatus(installed=False, authenticated=False, error=error.message)
        try:
            credential = await self._deps.credentials.resolve(user_id=user_id, backend=backend)
        except AuthRequiredError as error:
            return AuthStatus(installed=True, authenticated=False, error=error.message)
        argv = adapter.probe_argv() if image is not None else None
        if image is None or argv is None:
            env = env_of(adapter, credential, PLACEHOLDER, gateway=credential.api_key is not None)
            if credential.home is not None:
                env["HOME"] = str(credential.home)  # the adapter looks from here, not from inside
            return await adapter.probe_auth(env)
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._turns:
                return await self._in_container(adapter, credential, image, argv)
        except TimeoutError:
            raise SandboxError(f"no container could be had within {WAIT_SECONDS:.0f} s; try again later") from None

    async def _in_container(
        self, adapter: BaseAdapter, credential: Resolved, image: ImageRef, argv: list[str]
    ) -> AuthStatus:
        deps, probe_id = self._deps, new_id()
        log_path = deps.paths.log_path(probe_id)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._discard, probe_id)
            prepared = await deps.workspaces.prepare(subagent_id=probe_id, source=None, mode="readonly")
            control_dir = await deps.workspaces.make_control_dir(probe_id, "")
            await asyncio.to_thread(make_log, log_path)
            spec = self._spec(adapter, credential, image, argv, probe_id, prepared, control_dir)
            container_id = await deps.runtime.create(spec)
            undo.push_async_callback(self._remove, container_id)
            sandbox = await deps.runtime.start_sandbox(container_id)
            try:
                ended = await asyncio.wait_for(deps.runtime.wait(sandbox), PROBE_SECONDS)
            except TimeoutError:
                error = f"{adapter.binary} gave no answer within {PROBE_SECONDS:.0f} s"
                status = AuthStatus(installed=True, authenticated=False, error=error)
            else:
                stdout, stderr = await asyncio.to_thread(read_output, log_path)
                status = _verdict(adapter, ended, stdout, stderr)
            if credential.api_key is not None and status.installed and not status.authenticated:
                # Some CLIs tell of their stored logins only; with a key it is the environment that counts.
                return await adapter.probe_auth(dict(spec.env))
            return status

    def _spec(
        self, adapter: BaseAdapter, credential: Resolved, image: ImageRef, argv: list[str], probe_id: str,
        prepared: Prepared, control_dir: Path,
    ) -> SandboxSpec:  # fmt: skip
        deps = self._deps
        binary = deps.config.external_agent.backends[adapter.name].binary
        limits = resolve_limits(deps.config, adapter.name, LimitsRequest())
        own = binary is not None and argv[0] == adapter.binary
        return SandboxSpec(
            sandbox_id=probe_id, run_id=probe_id, instance=deps.instance, backend=adapter.name,
            image_id=image.image_id, argv=[ENTRY, binary if own and binary else argv[0], *argv[1:]],
            env=env_of(adapter, credential, PLACEHOLDER, gateway=credential.api_key is not None), tier=1,
            workspace=prepared.mount,
            home=credential.home or prepared.home, control_dir=control_dir, log_path=deps.paths.log_path(probe_id),
            memory_max_bytes=limits.memory_max_bytes, memory_by_cgroup=deps.runtime.memory_by_cgroup,
            pids_max=limits.pids_max, cpus=limits.cpus, kill_after_seconds=int(WAIT_SECONDS),
        )  # fmt: skip

    async def _remove(self, container_id: str) -> None:
        """What cannot be removed is left to the next start."""
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await self._deps.runtime.remove(container_id)
        except (PodmentorError, TimeoutError) as error:
            log.warning("the container of a probe could not be removed: %s", error)

    async def _discard(self, probe_id: str) -> None:
        """The directories of a probe."""
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await self._deps.workspaces.remove_control_dir(probe_id)
                await self._deps.workspaces.discard(probe_id)
                await self._deps.runtime.delete_tree(self._deps.paths.run_dir(probe_id))
        except (PodmentorError, TimeoutError, OSError) as error:
            log.warning("what is left of the probe %s could not be removed: %s", probe_id, error)

    async def sweep(self) -> None:
        """Remove the directories of probes that a crash has cut short; their containers go with those of the runs."""
        for probe_id in await asyncio.to_thread(_left_over, self._deps.paths.state_dir):
            await self._discard(probe_id)


def new_id() -> str:
    """The id of a probe; it has the form of a run's."""
    return _PREFIX + secrets.token_hex(10)[: 32 - len(_PREFIX)]


def _left_over(state_dir: Path) -> list[str]:
    places = (state_dir / "subagents", state_dir / "runs")
    return sorted({path.name for place in places for path in place.glob(f"{_PREFIX}*")})


def read_output(log_path: Path) -> tuple[str, str]:
    """stdout and stderr of a short command, from conmon's log.  Blocks."""
    out = {"stdout": b"", "stderr": b""}
    with log_path.open("rb") as file:
        for piece in CriFramer().feed(file.read(2 * OUTPUT_BYTES)):
            out[piece.stream] += piece.data
    return out["stdout"].decode("utf-8", "replace"), out["stderr"].decode("utf-8", "replace")


def _verdict(adapter: BaseAdapter, ended: SandboxExit, stdout: str, stderr: str) -> AuthStatus:
    if ended.exit_code is None:
        return AuthStatus(installed=True, authenticated=False, error="the container vanished before it had answered")
    return adapter.read_probe(exit_code=ended.exit_code, stdout=stdout, stderr=stderr)
