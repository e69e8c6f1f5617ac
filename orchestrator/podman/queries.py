"""Questions to Podman about containers and images; all may be asked again without harm."""

import asyncio
import json
import re

from orchestrator.config.models import PLAIN_NAME
from orchestrator.contract.sandbox import IMAGE_REPOSITORY, LABEL_RUN, LABEL_SANDBOX, FoundSandbox, ImageRef
from orchestrator.errors import ImageMissingError, RuntimeUnavailableError
from orchestrator.podman.client import LibpodClient
from orchestrator.podman.inspect import ContainerState, found_sandbox, image_ref
from orchestrator.podman.spec import AGENT_GID, AGENT_UID
from orchestrator.podman.transport import object_body

_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"


async def container_state(client: LibpodClient, container_id: str) -> ContainerState:
    """Raises SandboxGoneError; a service that does not answer is given some time to come back."""
    async for attempt in client.attempts(RuntimeUnavailableError, attempts=5):
        with attempt:
            reply = await client.once("GET", f"/containers/{container_id}/json")
            return await asyncio.to_thread(ContainerState.of, object_body(reply, "the container"))
    raise RuntimeUnavailableError("Podman was not asked")  # the loop above returns or raises


async def ids_mapped(client: LibpodClient, container_id: str) -> bool:
    """Whether root and the agent's user exist in the container's user namespace.

    When many containers are created at once, Podman now and then fails to read the subordinate ids.  4.3 then refuses;
    5.x goes on, and has made a container that cannot be started.
    """
    reply = await client.call("GET", f"/containers/{container_id}/json")
    host = object_body(reply, "the container").get("HostConfig") or {}
    mappings = host.get("IDMappings")
    if not isinstance(mappings, dict):
        return True
    wanted = ((mappings.get("UidMap"), AGENT_UID), (mappings.get("GidMap"), AGENT_GID))
    return all(_maps(ranges or [], 0) and _maps(ranges or [], agent) for ranges, agent in wanted)


def _maps(ranges: list[str], number: int) -> bool:
    """``ranges``: first id inside, first id outside, count."""
    for text in ranges:
        first, _, count = map(int, text.split(":"))
        if first <= number < first + count:
            return True
    return False


async def sandboxes(client: LibpodClient, label: str) -> list[FoundSandbox]:
    """All containers, running or not, with a label (``name=value``)."""
    params = {"all": "true", "filters": json.dumps({"label": [label]})}
    reply = await client.call("GET", "/containers/json", params=params)
    rows = reply.body if isinstance(reply.body, list) else []
    return [found_sandbox(row, run=LABEL_RUN, sandbox=LABEL_SANDBOX) for row in rows]


async def backend_image(client: LibpodClient, backend: str, *, tag: str = "current") -> ImageRef:
    """The image that a tag of a backend points at.  Raises ImageMissingError."""
    if not re.fullmatch(PLAIN_NAME, backend):
        raise ImageMissingError(f"there is no image for {backend!r}: that is not the name of a backend")
    if not re.fullmatch(_TAG, tag):
        raise ImageMissingError(f"{tag!r} is not the tag of an image")
    missing = f"there is no image for {backend}: run `podmentor images build {backend}`"
    if tag != "current":
        missing = f"{backend} has no image with the tag {tag}: podmentor images list shows those that there are"
    try:
        reply = await client.call("GET", f"/images/{IMAGE_REPOSITORY}/{backend}:{tag}/json")
    except ImageMissingError:
        raise ImageMissingError(missing, backend=backend) from None
    found = image_ref(object_body(reply, "the image"), backend)
    if found is None:
        raise ImageMissingError(missing, backend=backend)
    return found
