"""A backend as clients see it."""

from __future__ import annotations

import asyncio

from orchestrator.contract.adapter import BackendInfo, BaseAdapter, tool_name
from orchestrator.contract.sandbox import ImageRef
from orchestrator.errors import SandboxError
from orchestrator.runs.deps import Deps


async def describe(adapter: BaseAdapter, deps: Deps, *, user_id: str) -> BackendInfo:
    """Image, version, abilities, and which credential this user's runs would use."""
    image: ImageRef | None = None
    try:
        image = await deps.runtime.image(adapter.image or adapter.name)
    except SandboxError:
        image = None  # not built, or Podman does not answer: the field says so by being null
    links = await deps.credentials.explain(user_id=user_id, backend=adapter.name)
    chosen = next((one["link"] for one in links if one["chosen"]), None)
    auth: dict[str, object] = {"link": chosen, "authenticated": chosen is not None}
    if chosen is None:
        auth["error"] = "; ".join(str(one["reason"]) for one in reversed(links)) or "there is no place to look for one"
    return BackendInfo(
        name=adapter.name,
        tool_name=tool_name(adapter.name),
        image=image.image_id if image else None,
        image_tag=image.tag if image else None,
        cli_version=image.cli_version if image else None,
        capabilities=adapter.capabilities,
        capabilities_seen=await asyncio.to_thread(deps.seen, adapter.name, image.cli_version) if image else None,
        default_allowed_egress=list(adapter.default_allowed_egress),
        auth=auth,
    )
