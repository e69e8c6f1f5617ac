"""The composition root of a login at a terminal, which needs containers and no service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.audit import AuditLog
from orchestrator.bootstrap.runtime import instance_id, make_directories, podman_runtime
from orchestrator.bootstrap.vault import with_secrets
from orchestrator.config.environment import process_environment
from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import HomeKey
from orchestrator.credentials import Homes
from orchestrator.doctor import working_runtime
from orchestrator.errors import UnknownBackendError
from orchestrator.podman.service import podman_environment
from orchestrator.registry import load_adapters
from orchestrator.runs.auth_container import AuthContainers


@asynccontextmanager
async def login_sandbox(
    config: Config, paths: Paths, *, user_id: str, backend: str, actor: str
) -> AsyncIterator[tuple[list[str], dict[str, str]]]:
    """A container for a login, for as long as the block lasts: the command that brings a terminal to it, and the
    environment of that command.

    No run begins to use the account meanwhile.  ``actor``: for the audit log.  Raises UnknownBackendError,
    InvalidRequestError (no subscriptions, no login, a user id that is no plain name), ConflictError (the account is in
    use), StorageError, ImageMissingError, SandboxError.
    """
    adapter = load_adapters([backend]).get(backend)
    if adapter is None:
        raise UnknownBackendError(f"there is no backend {backend!r}")
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(make_directories, paths)
        config = await with_secrets(config, paths)
        home = stack.enter_context(Homes(paths.plugin_storage).logging_in(HomeKey(user_id, backend)))
        await AuditLog(paths.audit_log).record("account.login", actor=actor, user_id=user_id, backend=backend)
        instance = await asyncio.to_thread(instance_id, paths.state_dir)
        runtime = await podman_runtime(config, paths, instance, stack)
        containers = AuthContainers.of(config, paths, runtime, instance)
        term = process_environment().get("TERM", "xterm")
        container_id = await stack.enter_async_context(containers.login(adapter=adapter, home=home, term=term))
        oci_runtime = await working_runtime(config=config, paths=paths)
        choice = ["--runtime", oci_runtime] if oci_runtime is not None else []
        # Ctrl-C is Podman's own way out here: a CLI may pay no heed to it.
        argv = ["podman", *choice, "start", "--attach", "--interactive", "--detach-keys=ctrl-c", container_id]
        yield argv, podman_environment(process_environment())
