"""What Podman is asked to do to a container that must end; all of it bounded in time."""

import asyncio
import contextlib
from typing import Final

from orchestrator.errors import RuntimeUnavailableError, SandboxError, SandboxGoneError, TransientSandboxError
from orchestrator.podman import queries
from orchestrator.podman.client import LibpodClient

REMOVE_SECONDS: Final = 30.0
SIGNAL_SECONDS: Final = 2.0
"""A run that must end does not wait longer for Podman to pass a signal on."""


async def delete(client: LibpodClient, container_id: str) -> None:
    """Remove a container, until Podman knows none with this id.  Raises SandboxError."""
    path = f"/containers/{container_id}"
    params = {"force": "true", "timeout": "0", "v": "true"}
    async for attempt in client.attempts(RuntimeUnavailableError):
        with attempt, contextlib.suppress(SandboxGoneError):
            await client.once("DELETE", path, params=params, timeout=REMOVE_SECONDS)
            await client.once("GET", f"{path}/exists")
            raise TransientSandboxError(f"container {container_id[:12]} is still there after its removal")


async def signal(client: LibpodClient, container_id: str, name: str) -> None:
    """Signal the first process; nothing happens when it has ended, is gone, or Podman takes too long.

    Raises SandboxError when Podman says why it cannot.
    """
    path, params = f"/containers/{container_id}/kill", {"signal": name}
    with contextlib.suppress(SandboxGoneError, TimeoutError):
        async with asyncio.timeout(SIGNAL_SECONDS):
            try:
                await client.once("POST", path, params=params)
            except SandboxGoneError:
                return
            except SandboxError:
                if (await queries.container_state(client, container_id)).live:
                    await client.call("POST", path, params=params)
