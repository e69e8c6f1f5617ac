"""What Podman is asked about containers and made to do with them: bounded in time, and right although it may be busy,
lose an answer, or make a broken container.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orchestrator.config.models import PLAIN_NAME
from orchestrator.contract.sandbox import IMAGE_REPOSITORY, LABEL_RUN, LABEL_SANDBOX, FoundSandbox, ImageRef
from orchestrator.errors import (
    ImageMissingError,
    RuntimeUnavailableError,
    SandboxError,
    SandboxGoneError,
    TransientSandboxError,
)
from orchestrator.podman.client import ATTEMPTS, LibpodClient, answered
from orchestrator.podman.inspect import ContainerState, found_sandbox, image_ref
from orchestrator.podman.spec import AGENT_GID, AGENT_UID, NAME
from orchestrator.podman.transport import object_body

CREATE_SECONDS: Final = 80.0
"""The first container of an image copies its layers for the id mapping: 12 to 30 s, when the build has not done it."""
REMOVE_SECONDS: Final = 30.0
SIGNAL_SECONDS: Final = 2.0
"""A run that must end does not wait longer for Podman to pass a signal on."""
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Containers:
    """The containers (and images) of the Podman that ``client`` talks to.

    ``remove`` gets the id of every container that an attempt to create one has made beside the one that is returned.
    """

    def __init__(self, client: LibpodClient, *, remove: Callable[[str], Awaitable[None]]) -> None:
        self._client = client
        self._remove = remove

    # --- questions, which may be asked again without harm ----------------------------------------------------------

    async def state(self, container_id: str) -> ContainerState:
        """Raises SandboxGoneError; a service that does not answer is given some time to come back."""
        async for attempt in self._client.attempts(RuntimeUnavailableError, attempts=5):
            with attempt:
                reply = await self._client.once("GET", f"/containers/{container_id}/json")
                return await asyncio.to_thread(ContainerState.of, object_body(reply, "the container"))
        raise RuntimeUnavailableError("Podman was not asked")  # the loop above returns or raises

    async def find(self, label: str) -> list[FoundSandbox]:
        """All containers, running or not, with a label (``name=value``)."""
        params = {"all": "true", "filters": json.dumps({"label": [label]})}
        reply = await self._client.call("GET", "/containers/json", params=params)
        rows = reply.body if isinstance(reply.body, list) else []
        return [found_sandbox(row, run=LABEL_RUN, sandbox=LABEL_SANDBOX) for row in rows]

    async def image(self, backend: str, *, tag: str = "current") -> ImageRef:
        """The image that a tag of a backend points at.  Raises ImageMissingError."""
        if not re.fullmatch(PLAIN_NAME, backend):
            raise ImageMissingError(f"there is no image for {backend!r}: that is not the name of a backend")
        if not _TAG.fullmatch(tag):
            raise ImageMissingError(f"{tag!r} is not the tag of an image")
        missing = f"there is no image for {backend}: run `podmentor images build {backend}`"
        if tag != "current":
            missing = f"{backend} has no image with the tag {tag}: podmentor images list shows those that there are"
        try:
            reply = await self._client.call("GET", f"/images/{IMAGE_REPOSITORY}/{backend}:{tag}/json")
        except ImageMissingError:
            raise ImageMissingError(missing, backend=backend) from None
        found = image_ref(object_body(reply, "the image"), backend)
        if found is None:
            raise ImageMissingError(missing, backend=backend)
        return found

    # --- creating --------------------------------------------------------------------------------------------------

    async def create(self, payload: dict[str, Any], *, sandbox_id: str) -> str:
        """Create a container; its id.  Raises SandboxError, ImageMissingError; nothing else is left then."""
        made, unsure = None, False
        try:
            async for attempt in self._client.attempts():
                with attempt:
                    try:
                        made = await self._create_once(payload, attempt.retry_state.attempt_number)
                    except SandboxError as error:
                        unsure = unsure or not answered(error)
                        raise
        except ImageMissingError as error:
            raise ImageMissingError(error.message, image=str(payload["image"])) from None
        finally:
            if unsure:
                await self._remove_others(sandbox_id, keep=made)
                await self.forget_halves(sandbox_id)
        if made is None:
            raise SandboxError("Podman created no container")
        return made

    async def _create_once(self, payload: dict[str, Any], number: int) -> str:
        # A name of its own for each attempt: one that got no answer may have made a container after all.
        body = {**payload, "name": _name(payload["name"], number)}
        reply = await self._client.once("POST", "/containers/create", body=body, timeout=CREATE_SECONDS)
        made = str(object_body(reply, "create").get("Id", ""))
        try:
            if await self._ids_mapped(made):
                return made
        except SandboxError as error:
            raise TransientSandboxError(f"a new container cannot be looked at: {error.message}") from None
        raise TransientSandboxError("Podman made a container without its user ids")

    async def _ids_mapped(self, container_id: str) -> bool:
        """Whether root and the agent's user exist in the container's user namespace.

        When many containers are created at once, Podman now and then fails to read the subordinate ids.  4.3 then
        refuses; 5.x goes on, and has made a container that cannot be started.
        """
        reply = await self._client.call("GET", f"/containers/{container_id}/json")
        host = object_body(reply, "the container").get("HostConfig") or {}
        mappings = host.get("IDMappings")
        if not isinstance(mappings, dict):
            return True
        wanted = ((mappings.get("UidMap"), AGENT_UID), (mappings.get("GidMap"), AGENT_GID))
        return all(_maps(ranges or [], 0) and _maps(ranges or [], agent) for ranges, agent in wanted)

    async def _remove_others(self, sandbox_id: str, *, keep: str | None) -> None:
        with contextlib.suppress(SandboxError):
            for found in await self.find(f"{LABEL_SANDBOX}={sandbox_id}"):
                if found.container_id != keep:
                    await self._remove(found.container_id)

    # --- ending ----------------------------------------------------------------------------------------------------

    async def signal(self, container_id: str, name: str) -> None:
        """Signal the first process; nothing happens when it has ended, is gone, or Podman takes too long.

        Raises SandboxError when Podman says why it cannot.
        """
        path, params = f"/containers/{container_id}/kill", {"signal": name}
        with contextlib.suppress(SandboxGoneError, TimeoutError):
            async with asyncio.timeout(SIGNAL_SECONDS):
                try:
                    await self._client.once("POST", path, params=params)
                except SandboxGoneError:
                    return
                except SandboxError:
                    if (await self.state(container_id)).live:
                        await self._client.call("POST", path, params=params)

    async def delete(self, container_id: str) -> None:
        """Remove a container, until Podman knows none with this id.  Raises SandboxError."""
        path = f"/containers/{container_id}"
        params = {"force": "true", "timeout": "0", "v": "true"}
        async for attempt in self._client.attempts(RuntimeUnavailableError):
            with attempt, contextlib.suppress(SandboxGoneError):
                await self._client.once("DELETE", path, params=params, timeout=REMOVE_SECONDS)
                await self._client.once("GET", f"{path}/exists")
                raise TransientSandboxError(f"container {container_id[:12]} is still there after its removal")

    async def forget_halves(self, sandbox_id: str) -> None:
        """Remove what a Podman that was killed in the middle of a create has left in its storage.

        It has a name, no label, and Podman does not list it with the containers; whole ones are not touched.  A failure
        is left to the next try.
        """
        with contextlib.suppress(SandboxError):
            params = {"all": "true", "external": "true"}
            reply = await self._client.call("GET", "/containers/json", params=params)
            names = {_name(f"{NAME}{sandbox_id}", number) for number in range(1, ATTEMPTS + 1)}
            for row in reply.body if isinstance(reply.body, list) else []:
                found = names.intersection(row.get("Names") or [])
                if not (row.get("Labels") or {}) and str(row.get("State")).lower() == "storage" and found:
                    await self._client.once("DELETE", f"/containers/{found.pop()}", params={"force": "true"})


def _name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _maps(ranges: list[str], number: int) -> bool:
    """``ranges``: first id inside, first id outside, count."""
    for text in ranges:
        first, _, count = map(int, text.split(":"))
        if first <= number < first + count:
            return True
    return False
