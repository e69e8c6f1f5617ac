"""Containers that serve no run: a login at a terminal, and the CLI's own check of its login.

They are hardened as every other one is, see the HOME and nothing else, and are removed when they have ended.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.config.models import BackendConfig
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.sandbox import HOME_DIR, Runtime, SandboxExit, SandboxSpec, WorkspaceMount
from orchestrator.contract.types import AuthStatus, Credentials, ResourceLimits
from orchestrator.errors import ImageMissingError, InvalidRequestError, SandboxError
from orchestrator.framing import CriFramer

ASIDE = "aside-"
"""What the run id in the label of such a container begins with."""
LOGIN_SECONDS = 1800
PROBE_SECONDS = 60
_OUTPUT_MAX = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What these containers are made with."""

    runtime: Runtime
    runtime_dir: Path
    instance: str
    backends: dict[str, BackendConfig]
    host_network: bool = False

    @asynccontextmanager
    async def login(self, *, adapter: BaseAdapter, home: Path, term: str) -> AsyncIterator[str]:
        """A container, created and not started, in which the CLI's own login waits for a terminal; its id.

        Raises InvalidRequestError when the backend has no login, ImageMissingError, SandboxError.
        """
        config = self.backends.get(adapter.name, BackendConfig())
        argv = config.login_command or adapter.login_argv()
        if argv is None:
            raise InvalidRequestError(f"{adapter.name} has no login of its own; set login_command for this backend")
        async with self._created(
            adapter, argv, home, tier=0, interactive=True, seconds=LOGIN_SECONDS, extra={"TERM": term}
        ) as (container_id, _):
            yield container_id

    async def probe(self, *, adapter: BaseAdapter, home: Path) -> AuthStatus:
        """The CLI's own check, without a network, so that nothing is renewed by it; see ``AuthProbe``."""
        argv = adapter.probe_argv()
        if argv is None:
            return AuthStatus(installed=True, authenticated=True)  # the login is there, and there is nobody to ask
        try:
            async with self._created(adapter, argv, home, tier=1, interactive=False, seconds=PROBE_SECONDS) as (
                box,
                log,
            ):
                ended = await self._ended(box)
                out, err = await asyncio.to_thread(_output, log)
        except ImageMissingError as error:
            return AuthStatus(installed=False, authenticated=False, error=error.message)
        except SandboxError as error:
            return AuthStatus(installed=True, authenticated=False, error=f"it could not be checked: {error.message}")
        except TimeoutError:
            return AuthStatus(installed=True, authenticated=False, error=f"no answer within {PROBE_SECONDS} seconds")
        return adapter.read_probe(exit_code=-1 if ended.exit_code is None else ended.exit_code, stdout=out, stderr=err)

    async def _ended(self, container_id: str) -> SandboxExit:
        async with asyncio.timeout(PROBE_SECONDS):
            return await self.runtime.wait(await self.runtime.start_sandbox(container_id))

    @asynccontextmanager
    async def _created(
        self, adapter: BaseAdapter, argv: Sequence[str], home: Path, *, tier: Literal[0, 1], interactive: bool,
        seconds: int, extra: dict[str, str] | None = None,
    ) -> AsyncIterator[tuple[str, Path]]:  # fmt: skip
        image = await self.runtime.image(adapter.image or adapter.name)
        place = await asyncio.to_thread(_make_place, self.runtime_dir)
        try:
            config = self.backends.get(adapter.name, BackendConfig())
            binary = config.binary if config.binary is not None and argv[0] == adapter.binary else argv[0]
            creds = Credentials(home=Path(HOME_DIR), extra_env={**config.extra_env, **(extra or {})})
            limits = ResourceLimits()
            spec = SandboxSpec(
                sandbox_id=uuid.uuid4().hex, run_id=ASIDE + uuid.uuid4().hex, instance=self.instance,
                backend=adapter.name, image_id=image.image_id, argv=[binary, *argv[1:]],
                env=adapter.build_env(creds=creds, home=Path(HOME_DIR)), tier=tier,
                workspace=WorkspaceMount(mode="readonly", source=place / "empty"), home=home,
                control_dir=place / "control", log_path=place / "output", memory_max_bytes=limits.memory_max_bytes,
                memory_by_cgroup=self.runtime.memory_by_cgroup, pids_max=limits.pids_max, cpus=None,
                kill_after_seconds=seconds, host_network=self.host_network and tier == 0, interactive=interactive,
            )  # fmt: skip
            container_id = await self.runtime.create(spec)
            try:
                yield container_id, spec.log_path
            finally:
                await self.runtime.remove(container_id)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def sweep_places(runtime_dir: Path) -> None:
    """Remove the directories that a crash has left: those older than any login may last.  Blocks."""
    for place in runtime_dir.glob(f"{ASIDE}*"):
        with suppress(OSError):
            if time.time() - place.stat().st_mtime > LOGIN_SECONDS:
                shutil.rmtree(place, ignore_errors=True)


def _make_place(runtime_dir: Path) -> Path:
    place = Path(tempfile.mkdtemp(prefix=ASIDE, dir=runtime_dir))
    for name in ("empty", "control"):
        (place / name).mkdir(mode=0o700)
    (place / "output").touch(mode=0o600)
    return place


def _output(log: Path) -> tuple[str, str]:
    with log.open("rb") as file:
        data = file.read(_OUTPUT_MAX)
    text = {"stdout": b"", "stderr": b""}
    for piece in CriFramer().feed(data):
        text[piece.stream] += piece.data
    return text["stdout"].decode("utf-8", "replace"), text["stderr"].decode("utf-8", "replace")
