"""Creating a container although Podman may be busy, lose the answer, or make a broken one; nothing else is left."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orchestrator.contract.sandbox import LABEL_SANDBOX
from orchestrator.errors import ImageMissingError, SandboxError, TransientSandboxError
from orchestrator.podman import queries
from orchestrator.podman.client import ATTEMPTS, LibpodClient, answered
from orchestrator.podman.spec import NAME
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
            await forget_halves(client, sandbox_id)
    if made is None:
        raise SandboxError("Podman created no container")
    return made


async def _once(client: LibpodClient, payload: dict[str, Any], number: int) -> str:
    # A name of its own for each attempt: one that got no answer may have made a container after all.
    body = {**payload, "name": _name(payload["name"], number)}
    reply = await client.once("POST", "/containers/create", body=body, timeout=CREATE_SECONDS)
    made = str(object_body(reply, "create").get("Id", ""))
    try:
        if await queries.ids_mapped(client, made):
            return made
    except SandboxError as error:
        raise TransientSandboxError(f"a new container cannot be looked at: {error.message}") from None
    raise TransientSandboxError("Podman made a container without its user ids")


async def forget_halves(client: LibpodClient, sandbox_id: str) -> None:
    """Remove what a Podman that was killed in the middle of a create has left in its storage.

    It has a name, no label, and Podman does not list it with the containers; whole ones are not touched.  A failure is
    left to the next try.
    """
    with contextlib.suppress(SandboxError):
        params = {"all": "true", "external": "true"}
        reply = await client.call("GET", "/containers/json", params=params)
        names = {_name(f"{NAME}{sandbox_id}", number) for number in range(1, ATTEMPTS + 1)}
        for row in reply.body if isinstance(reply.body, list) else []:
            found = names.intersection(row.get("Names") or [])
            if not (row.get("Labels") or {}) and str(row.get("State")).lower() == "storage" and found:
                await client.once("DELETE", f"/containers/{found.pop()}", params={"force": "true"})


def _name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


async def _sweep(
    client: LibpodClient, sandbox_id: str, *, keep: str | None, remove: Callable[[str], Awaitable[None]]
) -> None:
    with contextlib.suppress(SandboxError):
        for found in await queries.sandboxes(client, f"{LABEL_SANDBOX}={sandbox_id}"):
            if found.container_id != keep:
                await remove(found.container_id)
