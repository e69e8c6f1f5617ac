"""Creating a container although Podman may be busy, lose the answer, or make a broken one; nothing else is left."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orchestrator.contract.sandbox import LABEL_SANDBOX
from orchestrator.errors import ImageMissingError, SandboxError, TransientSandboxError
from orchestrator.podman import queries
from orchestrator.podman.client import LibpodClient, answered
from orchestrator.podman.transport import object_body

CREATE_SECONDS: Final = 80.0
"""The first container of an image copies its layers for the id mapping: 12 to 30 s, when the build has not done it."""


async def create_container(
    client: LibpodClient, payload: dict[str, Any], *, sandbox_id: str, remove: Callable[[str], Awaitable[None]]
) -> str:
    """Create it; its id.  ``remove`` gets the id of any other container that the attempts made.

    Raises SandboxError, ImageMissingError.
    """
    made, unsure = None, False
    try:
        async for attempt in client.attempts():
            with attempt:
                try:
                    made = await _once(client, payload, attempt.retry_state.attempt_number)
                except SandboxError as error:
                    unsure = unsure or not answered(error)
                    raise
    except ImageMissingError as error:
        raise ImageMissingError(error.message, image=str(payload["image"])) from None
    finally:
        if unsure:
            await _sweep(client, sandbox_id, keep=made, remove=remove)
    if made is None:
        raise SandboxError("Podman created no container")
    return made


async def _once(client: LibpodClient, payload: dict[str, Any], number: int) -> str:
    # A name of its own for each attempt: one that got no answer may have made a container after all.
    body = payload if number == 1 else {**payload, "name": f"{payload['name']}-{number}"}
    reply = await client.once("POST", "/containers/create", body=body, timeout=CREATE_SECONDS)
    made = str(object_body(reply, "create").get("Id", ""))
    try:
        if await queries.ids_mapped(client, made):
            return made
    except SandboxError as error:
        raise TransientSandboxError(f"a new container cannot be looked at: {error.message}") from None
    raise TransientSandboxError("Podman made a container without its user ids")


async def _sweep(
    client: LibpodClient, sandbox_id: str, *, keep: str | None, remove: Callable[[str], Awaitable[None]]
) -> None:
    with contextlib.suppress(SandboxError):
        for found in await queries.sandboxes(client, f"{LABEL_SANDBOX}={sandbox_id}"):
            if found.container_id != keep:
                await remove(found.container_id)
