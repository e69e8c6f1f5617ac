"""A runtime without containers: a container is a log file that the test writes to as conmon would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from orchestrator.contract.sandbox import FoundSandbox, ImageRef, SandboxExit, SandboxSpec, StartedSandbox
from orchestrator.errors import ImageMissingError, SandboxError, SandboxGoneError

NO_PROCESS = 2**22 + 1
"""A pid that cannot exist: above the kernel's maximum."""


@dataclass
class FakeContainer:
    """One pretended container."""

    spec: SandboxSpec
    container_id: str
    state: Literal["created", "running", "exited"] = "created"
    exit_code: int | None = None
    oom_killed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    signals: list[str] = field(default_factory=list)
    ignores_int: bool = False

    def write(self, data: bytes, stream: str = "stdout", mark: str = "F") -> None:
        """Raw bytes of one log piece."""
        ts = datetime.now(UTC).isoformat()
        with self.spec.log_path.open("ab") as log:
            log.write(f"{ts} {stream} {mark} ".encode() + data + b"\n")

    def say(self, **line: Any) -> None:
        """One line of the pretended CLI."""
        self.write(json.dumps(line).encode())

    def exit(self, code: int | None, *, oom_killed: bool = False) -> None:
        self.state, self.exit_code, self.oom_killed = "exited", code, oom_killed
        self.ended.set()


class FakeRuntime:
    """Implements ``Runtime``.  ``on_start`` is called with each started container; ``containers`` survives the service."""

    def __init__(self, on_start: Callable[[FakeContainer], None] | None = None) -> None:
        self.containers: dict[str, FakeContainer] = {}
        self.created: list[SandboxSpec] = []
        self.on_start = on_start
        self.started: asyncio.Queue[FakeContainer] = asyncio.Queue()
        self.has_image = True
        self.fail_create: SandboxError | None = None
        self.hold_create: asyncio.Event | None = None
        self.memory_by_cgroup = True
        self.removed: list[str] = []
        self.asked_for: list[str | None] = []
        """The sandboxes of the runs whose containers were all to be removed."""
        self.cpus_by = "cgroup"
        self.fail_remove: SandboxError | None = None
        self.fail_signal: SandboxError | None = None
        self.hold_signal: asyncio.Event | None = None

    @property
    def enforcement(self) -> dict[str, str]:
        memory = "cgroup" if self.memory_by_cgroup else "watchdog"
        return {"memory_max_bytes": memory, "pids_max": "rlimit", "cpus": self.cpus_by}

    async def start(self) -> None:
        return None

    async def aclose(self) -> None:
        return None

    async def create(self, spec: SandboxSpec) -> str:
        if self.hold_create is not None:
            await self.hold_create.wait()
        if self.fail_create is not None:
            raise self.fail_create
        container_id = f"{len(self.created):064x}"
        self.created.append(spec)
        self.containers[container_id] = FakeContainer(spec, container_id)
        return container_id

    async def start_sandbox(self, container_id: str) -> StartedSandbox:
        container = self.containers[container_id]
        container.state = "running"
        self.started.put_nowait(container)
        if self.on_start is not None:
            self.on_start(container)
        return StartedSandbox(container_id=container_id, conmon_pid=NO_PROCESS, init_pid=NO_PROCESS)

    async def attach(self, container_id: str) -> StartedSandbox | SandboxExit:
        container = self.containers.get(container_id)
        if container is None:
            raise SandboxGoneError(f"no container {container_id}")
        if container.state == "exited":
            return SandboxExit(exit_code=container.exit_code, oom_killed=container.oom_killed)
        return StartedSandbox(container_id=container_id, conmon_pid=NO_PROCESS, init_pid=NO_PROCESS)

    async def wait(self, sandbox: StartedSandbox) -> SandboxExit:
        container = self.containers[sandbox.container_id]
        await container.ended.wait()
        return SandboxExit(exit_code=container.exit_code, oom_killed=container.oom_killed)

    async def signal(self, container_id: str, signal: Literal["INT", "TERM", "KILL"]) -> None:
        container = self.containers.get(container_id)
        if container is None or container.state != "running":
            return
        if self.fail_signal is not None:
            raise self.fail_signal
        if self.hold_signal is not None:
            await self.hold_signal.wait()
        container.signals.append(signal)
        if signal == "KILL" or not container.ignores_int:
            container.exit(137 if signal == "KILL" else 130)

    async def remove(self, container_id: str) -> None:
        if self.fail_remove is not None:
            raise self.fail_remove
        container = self.containers.pop(container_id, None)
        if container is not None:
            self.removed.append(container.spec.run_id)
            if container.state == "running":
                container.exit(137)

    async def remove_run(self, run_id: str, *, sandbox_id: str | None) -> None:
        self.asked_for.append(sandbox_id)
        for container in [container for container in self.containers.values() if container.spec.run_id == run_id]:
            await self.remove(container.container_id)

    async def find(self) -> list[FoundSandbox]:
        return [
            FoundSandbox(
                container_id=container.container_id,
                run_id=container.spec.run_id,
                sandbox_id=container.spec.sandbox_id,
                state=container.state,
            )
            for container in self.containers.values()
        ]

    async def image(self, backend: str) -> ImageRef:
        if not self.has_image:
            raise ImageMissingError(f"the image of {backend} is not built; run: podmentor images build {backend}")
        return ImageRef(
            image_id="a" * 64,
            tag=f"localhost/podmentor/{backend}:1.0-abc",
            backend=backend,
            cli_version="1.0",
            recipe="abc",
            size_bytes=1,
            created="2026-01-01T00:00:00Z",
        )

    async def delete_tree(self, path: Path) -> None:
        for child in sorted(path.rglob("*"), reverse=True):
            child.rmdir() if child.is_dir() and not child.is_symlink() else child.unlink()
        if path.exists():
            path.rmdir()
