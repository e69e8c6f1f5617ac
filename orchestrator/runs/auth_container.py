"""Containers that serve no run: a login at a terminal, and the question to a CLI whether it could log in.

They have a run's image and a run's hardening.  They see a HOME and nothing else, and nothing is left of them, not even
after a crash: their ids tell them from runs, so that the next start removes what it finds.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from orchestrator.config.models import BackendConfig, Config, Paths
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Resolved
from orchestrator.contract.sandbox import HOME_DIR, Runtime, SandboxExit, SandboxSpec, WorkspaceMount
from orchestrator.contract.types import AuthStatus, Credentials, ResourceLimits
from orchestrator.errors import ImageMissingError, InvalidRequestError, PodmentorError, SandboxError
from orchestrator.framing import CriFramer
from orchestrator.runs.launch.command import env_of

log = logging.getLogger(__name__)

LOGIN: Final = "login-"
"""What the run id of a login begins with; it may go on while the service is started anew."""
PROBE: Final = "probe-"
LOGIN_SECONDS: Final = 1800
PROBE_SECONDS: Final = 5.0
"""What a CLI has to answer, once its container runs."""
PATIENT_SECONDS: Final = 60.0
"""The same, when somebody has just logged in and waits for the answer."""
AT_ONCE: Final = 2
"""Questions; each costs as much as the start of a run."""
WAIT_SECONDS: Final = 60.0
"""For a turn, and for the container to start."""
REMOVE_SECONDS: Final = 30.0
OUTPUT_BYTES: Final = 256 * 1024
PLACEHOLDER: Final = "podmentor-probe"
"""In place of a run's token: no provider is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthContainers:
    """Makes and removes them.  ``instance``: of the service whose containers they are."""

    runtime: Runtime
    runtime_dir: Path
    instance: str
    backends: Mapping[str, BackendConfig]
    host_network: bool = False
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @classmethod
    def of(cls, config: Config, paths: Paths, runtime: Runtime, instance: str) -> Self:
        """For a configuration."""
        return cls(
            runtime=runtime,
            runtime_dir=paths.runtime_dir,
            instance=instance,
            backends=config.external_agent.backends,
            host_network=config.podman.tier0_network == "host",
        )

    @asynccontextmanager
    async def login(self, *, adapter: BaseAdapter, home: Path, term: str) -> AsyncIterator[str]:
        """A container, created and not started, in which the CLI's own login waits for a terminal; its id.

        Raises InvalidRequestError when the backend has no login, ImageMissingError, SandboxError.
        """
        config = self.backends.get(adapter.name, BackendConfig())
        argv = config.login_command or adapter.login_argv()
        if argv is None:
            raise InvalidRequestError(
                f"{adapter.name} has no login of its own; use a key, or set login_command for this backend"
            )
        creds = Credentials(home=Path(HOME_DIR), extra_env={**config.extra_env, "TERM": term})
        env = adapter.build_env(creds=creds, home=Path(HOME_DIR))
        async with self._created(LOGIN, adapter, argv, env, home, tier=0, seconds=LOGIN_SECONDS) as (container_id, _):
            yield container_id

    async def probe(self, *, adapter: BaseAdapter, home: Path) -> AuthStatus:
        """Whether the CLI finds a login in ``home``, for the person who has just logged in; see ``AuthProbe``.

        What stands in the way of an answer is one, too.
        """
        config = self.backends.get(adapter.name, BackendConfig())
        credential = Resolved(source="byo_subscription", home=home, extra_env=dict(config.extra_env))
        try:
            status = await self.ask(adapter, credential, seconds=PATIENT_SECONDS)
        except ImageMissingError as error:
            return AuthStatus(installed=False, authenticated=False, error=error.message)
        except SandboxError as error:
            return AuthStatus(installed=True, authenticated=False, error=f"it could not be checked: {error.message}")
        # Where there is nobody to ask: the login is there.
        return status or AuthStatus(installed=True, authenticated=True)

    async def ask(
        self, adapter: BaseAdapter, credential: Resolved, *, seconds: float = PROBE_SECONDS
    ) -> AuthStatus | None:
        """Ask the CLI, without a network, so that nothing is renewed by it; None: it has no command for that.

        Raises ImageMissingError, SandboxError.
        """
        argv = adapter.probe_argv()
        if argv is None:
            return None
        env = env_of(adapter, credential, PLACEHOLDER, gateway=credential.api_key is not None)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await stack.enter_async_context(self._turns)
                    container_id, output = await stack.enter_async_context(
                        self._created(PROBE, adapter, argv, env, credential.home, tier=1, seconds=2 * WAIT_SECONDS)
                    )
                    sandbox = await self.runtime.start_sandbox(container_id)
            except TimeoutError:
                raise SandboxError(f"no container could be had within {WAIT_SECONDS:.0f} s; try again later") from None
            try:
                ended = await asyncio.wait_for(self.runtime.wait(sandbox), seconds)
            except TimeoutError:
                error = f"{adapter.binary} gave no answer within {seconds:.0f} s"
                return AuthStatus(installed=True, authenticated=False, error=error)
            return await asyncio.to_thread(_verdict, adapter, ended, output)

    @asynccontextmanager
    async def _created(
        self,
        kind: str,
        adapter: BaseAdapter,
        argv: Sequence[str],
        env: dict[str, str],
        home: Path | None,
        *,
        tier: Literal[0, 1],
        seconds: float,
    ) -> AsyncIterator[tuple[str, Path]]:
        """The container's id and its log.  ``home`` None: an empty one.  ``seconds``: then it is ended, whatever is."""
        image = await self.runtime.image(adapter.image or adapter.name)
        run_id = kind + uuid.uuid4().hex
        place = self.runtime_dir / run_id
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._clear, place)
            await asyncio.to_thread(_make, place)
            binary = self.backends.get(adapter.name, BackendConfig()).binary
            limits = ResourceLimits()
            spec = SandboxSpec(
                sandbox_id=uuid.uuid4().hex,
                run_id=run_id,
                instance=self.instance,
                backend=adapter.name,
                image_id=image.image_id,
                argv=[binary if binary and argv[0] == adapter.binary else argv[0], *argv[1:]],
                env=env,
                tier=tier,
                workspace=WorkspaceMount(mode="readonly", source=place / "empty"),
                home=home or place / "home",
                control_dir=place / "control",
                log_path=place / "output",
                memory_max_bytes=limits.memory_max_bytes,
                memory_by_cgroup=self.runtime.memory_by_cgroup,
                pids_max=limits.pids_max,
                cpus=None,
                kill_after_seconds=int(seconds),
                host_network=self.host_network and tier == 0,
                interactive=kind == LOGIN,
            )
            container_id = await self.runtime.create(spec)
            undo.push_async_callback(self._remove, container_id)
            yield container_id, spec.log_path

    async def _remove(self, container_id: str) -> None:
        """What cannot be removed is left to the next start."""
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await self.runtime.remove(container_id)
        except (PodmentorError, TimeoutError) as error:
            log.warning("a container that served no run could not be removed: %s", error)

    async def _clear(self, place: Path) -> None:
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await self.runtime.delete_tree(place)
        except (PodmentorError, TimeoutError, OSError) as error:
            log.warning("%s could not be removed: %s", place, error)

    async def sweep(self, running: Collection[str]) -> None:
        """Remove the directories that a crash has left, not those of logins that are ``running`` or about to begin."""
        for place in await asyncio.to_thread(_left_over, self.runtime_dir, frozenset(running)):
            await self._clear(place)


def _make(place: Path) -> None:
    for directory in (place, place / "empty", place / "control", place / "home"):
        directory.mkdir(mode=0o700)
    (place / "output").touch(mode=0o600)


def _left_over(runtime_dir: Path, running: frozenset[str]) -> list[Path]:
    long_ago = time.time() - LOGIN_SECONDS
    logins = [place for place in runtime_dir.glob(f"{LOGIN}*") if place.lstat().st_mtime < long_ago]
    return [*runtime_dir.glob(f"{PROBE}*"), *(place for place in logins if place.name not in running)]


def _verdict(adapter: BaseAdapter, ended: SandboxExit, log_path: Path) -> AuthStatus:
    """What the CLI's answer says.  Blocks."""
    text = {"stdout": b"", "stderr": b""}
    try:
        with log_path.open("rb") as file:
            data = file.read(OUTPUT_BYTES)
    except OSError:
        data = None
    if data is None or ended.exit_code is None:
        return AuthStatus(installed=True, authenticated=False, error="the container vanished before it had answered")
    for piece in CriFramer().feed(data):
        text[piece.stream] += piece.data
    stdout, stderr = (text[stream].decode("utf-8", "replace") for stream in ("stdout", "stderr"))
    return adapter.read_probe(exit_code=ended.exit_code, stdout=stdout, stderr=stderr)
