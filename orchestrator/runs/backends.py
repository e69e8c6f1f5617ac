"""The enabled backends as users see them: what they can do, and whether they could log in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from orchestrator.contract.adapter import BackendInfo, BaseAdapter, tool_name
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.sandbox import ImageRef, Runtime
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import AuthRequiredError, ImageMissingError, SandboxError, UnknownBackendError
from orchestrator.runs.auth_container import PLACEHOLDER, AuthContainers
from orchestrator.runs.launch.command import env_of

BenchLookup: TypeAlias = Callable[[str, str], Mapping[str, Any] | None]
"""What the bench has observed of a backend in a CLI version; None when it has not been tried.  May block."""


class Backends:
    """The adapters of this service, by name."""

    def __init__(
        self,
        *,
        adapters: Mapping[str, BaseAdapter],
        runtime: Runtime,
        credentials: Credentialing,
        auth_containers: AuthContainers,
        observed: BenchLookup,
    ) -> None:
        self._adapters = adapters
        self._runtime = runtime
        self._credentials = credentials
        self._auth_containers = auth_containers
        self._observed = observed

    def adapter(self, name: str) -> BaseAdapter:
        """One of them.  Raises UnknownBackendError."""
        if (adapter := self._adapters.get(name)) is not None:
            return adapter
        known = ", ".join(sorted(self._adapters)) or "none"
        raise UnknownBackendError(f"there is no backend {name!r}; enabled: {known}")

    async def describe(self, *, user_id: str) -> list[BackendInfo]:
        """Image, version, abilities of each, and which credential this user's runs would use."""
        return [await self._describe(adapter, user_id) for adapter in self._adapters.values()]

    async def _describe(self, adapter: BaseAdapter, user_id: str) -> BackendInfo:
        image: ImageRef | None = None
        try:
            image = await self._runtime.image(adapter.image or adapter.name)
        except SandboxError:
            image = None  # not built, or Podman does not answer: the field says so by being null
        sources = await self._credentials.explain(user_id=user_id, backend=adapter.name)
        chosen = next((one["source"] for one in sources if one["chosen"]), None)
        auth: dict[str, object] = {"source": chosen, "authenticated": chosen is not None}
        if chosen is None:
            reasons = "; ".join(str(one["reason"]) for one in reversed(sources))
            auth["error"] = reasons or "there is no place to look for one"
        return BackendInfo(
            name=adapter.name,
            tool_name=tool_name(adapter.name),
            image=image.image_id if image else None,
            image_tag=image.tag if image else None,
            cli_version=image.cli_version if image else None,
            capabilities=adapter.capabilities,
            capabilities_seen=await asyncio.to_thread(self._observed, adapter.name, image.cli_version)
            if image
            else None,
            default_allowed_egress=list(adapter.default_allowed_egress),
            auth=auth,
        )

    async def probe(self, name: str, *, user_id: str) -> AuthStatus:
        """Ask the CLI itself whether it could log in; where it has no answer, look at what it would be given.

        Raises UnknownBackendError, SandboxError, StorageError.
        """
        adapter = self.adapter(name)
        if adapter.transport == "subprocess":
            try:
                await self._runtime.image(adapter.image or adapter.name)
            except ImageMissingError as error:
                return AuthStatus(installed=False, authenticated=False, error=error.message)
        try:
            credential = await self._credentials.resolve(user_id=user_id, backend=name)
        except AuthRequiredError as error:
            return AuthStatus(installed=True, authenticated=False, error=error.message)
        status = None
        if adapter.transport == "subprocess":
            status = await self._auth_containers.ask(adapter, credential)
        if status is not None and (credential.api_key is None or status.authenticated or not status.installed):
            return status
        # Some CLIs report their stored logins only; with a key it is the environment that counts.
        env = env_of(adapter, credential, PLACEHOLDER, gateway=credential.api_key is not None)
        if credential.home is not None:
            env["HOME"] = str(credential.home)  # the adapter looks from here, not from inside
        return await adapter.probe_auth(env)
