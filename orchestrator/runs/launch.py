"""From an admitted run to a started sandbox."""

from __future__ import annotations

import hashlib
import secrets
import time
import uuid
from pathlib import Path
from typing import Literal

from orchestrator.contract.adapter import BaseAdapter, GatewayRoute
from orchestrator.contract.credentials import LinkName, Resolved
from orchestrator.contract.gateway import GatewayGrant
from orchestrator.contract.runs import RunFilter
from orchestrator.contract.sandbox import (
    CONTROL_DIR,
    GATEWAY_PORT,
    HOME_DIR,
    WORKSPACE_DIR,
    SandboxSpec,
    StartedSandbox,
)
from orchestrator.contract.types import Credentials, ResourceLimits
from orchestrator.runs.clock import seconds_since
from orchestrator.runs.deps import Deps
from orchestrator.runs.recap import RECAP_RUNS, with_recap
from orchestrator.runs.store import StoredRun

ENTRY = "podmentor-entry"
"""First word of every container's command: starts the relays to the control directory's sockets, then the CLI."""
GATEWAY_URL = f"http://127.0.0.1:{GATEWAY_PORT}"
"""The gateway as a CLI in its container sees it."""
GRACE_SECONDS = 120
"""How much longer than the wall clock conmon and the relay let a run live when no service looks after it."""


async def launch(run: StoredRun, deps: Deps) -> StartedSandbox:
    """Everything up to the started container.  Raises PodmentorError; what was made is the caller's to remove."""
    record = run.record
    adapter = deps.adapters[record.backend]
    credential = await credential_of(run, deps)
    image = await deps.runtime.image(adapter.image or adapter.name)
    prepared = await deps.workspaces.prepare(
        subagent_id=record.subagent_id, source=run.source_path, mode=record.workspace
    )
    prompt = await prompt_of(run, adapter, deps)
    control_dir = await deps.workspaces.make_control_dir(record.run_id, prompt)
    token = secrets.token_urlsafe(32)
    token_sha256 = hashlib.sha256(token.encode()).hexdigest()
    sandbox_id = uuid.uuid4().hex
    log_path = deps.paths.log_path(record.run_id)
    make_log(log_path)
    enforcement: Literal["cgroup", "watchdog"] = "cgroup" if deps.runtime.memory_by_cgroup else "watchdog"
    await deps.store.put_sandbox(
        record.run_id, sandbox_id=sandbox_id, subagent_id=record.subagent_id, image_id=image.image_id,
        log_path=log_path, cli_version=image.cli_version, token_sha256=token_sha256, memory_enforcement=enforcement,
        credential_link=credential.link,
    )  # fmt: skip
    await grant(run, deps, credential, token_sha256)
    limits = record.limits
    spec = SandboxSpec(
        sandbox_id=sandbox_id, run_id=record.run_id, instance=deps.instance, backend=record.backend,
        image_id=image.image_id, argv=argv_of(run, prompt, adapter, deps, credential),
        env=env_of(adapter, credential, token),
        tier=record.tier, workspace=prepared.mount, home=credential.home or prepared.home, control_dir=control_dir,
        log_path=log_path, memory_max_bytes=limits.memory_max_bytes, memory_by_cgroup=deps.runtime.memory_by_cgroup,
        pids_max=limits.pids_max, cpus=limits.cpus,
        kill_after_seconds=int(limits.wall_clock_seconds) + GRACE_SECONDS,
        host_network=record.tier == 0 and deps.config.podman.tier0_network == "host",
    )  # fmt: skip
    container_id = await deps.runtime.create(spec)
    await deps.store.update_sandbox(sandbox_id, container_id=container_id)
    return await deps.runtime.start_sandbox(container_id)


async def credential_of(run: StoredRun, deps: Deps, *, link: LinkName | None = None) -> Resolved:
    """What the run uses to prove who it is, noted in the audit log: what cannot be noted is not used.

    ``link``: the one that it began with.  Raises what ``Credentialing.resolve`` does, and StorageError.
    """
    record = run.record
    found = await deps.credentials.resolve(user_id=record.user_id, backend=record.backend, link=link)
    await deps.audit.record(
        "credential.used", user_id=record.user_id, backend=record.backend, run_id=record.run_id, link=found.link
    )
    return found


async def grant(run: StoredRun, deps: Deps, credential: Resolved, token_sha256: str) -> None:
    """Open the run's gateway (again): only when there is a key to keep outside and a provider to bring it to."""
    record = run.record
    route = route_of(deps.adapters[record.backend], deps)
    if route is None or credential.api_key is None:
        return
    await deps.relay.grant(
        GatewayGrant(
            run_id=record.run_id,
            socket_path=deps.paths.control_dir(record.run_id) / "gateway.sock",
            token_sha256=token_sha256,
            route=route,
            api_key=credential.api_key,
            expires_at=time.time() + remaining(record.limits, record.started_at) + GRACE_SECONDS,
        )
    )


def remaining(limits: ResourceLimits, started_at: str | None) -> float:
    """Seconds of wall clock that a run has left."""
    return limits.wall_clock_seconds - (seconds_since(started_at) if started_at else 0.0)


def route_of(adapter: BaseAdapter, deps: Deps) -> GatewayRoute | None:
    """The adapter's route, to the operator's ``base_url`` if there is one."""
    base_url = deps.config.external_agent.backends[adapter.name].base_url
    if adapter.gateway is None or base_url is None:
        return adapter.gateway
    return GatewayRoute(
        upstream=base_url.rstrip("/"),
        key_headers=adapter.gateway.key_headers,
        path_prefixes=adapter.gateway.path_prefixes,
    )


async def prompt_of(run: StoredRun, adapter: BaseAdapter, deps: Deps) -> str:
    """What the CLI is told: the query, behind a recap of the conversation when the CLI cannot resume it."""
    record = run.record
    if adapter.supports_resume:
        return record.query
    wanted = RunFilter(user_id=None, subagent_id=record.subagent_id, before=record.run_id, limit=RECAP_RUNS)
    return with_recap(await deps.store.list_runs(wanted), record.query)


def argv_of(run: StoredRun, prompt: str, adapter: BaseAdapter, deps: Deps, credential: Resolved) -> list[str]:
    """The container's command."""
    argv = adapter.build_argv(prompt=prompt, session_id=run.backend_session_id, cwd=Path(WORKSPACE_DIR))
    binary = deps.config.external_agent.backends[adapter.name].binary
    gateway = adapter.gateway_argv(GATEWAY_URL) if credential.api_key is not None else []
    return [ENTRY, binary or argv[0], *argv[1:], *gateway]


def env_of(adapter: BaseAdapter, credential: Resolved, token: str) -> dict[str, str]:
    """The container's environment: the run's token where the CLI expects a key, never the key."""
    home = Path(HOME_DIR)
    gateway = adapter.gateway_env(GATEWAY_URL) if credential.api_key is not None else {}
    creds = Credentials(
        api_key=token if credential.api_key is not None else None,
        home=home,
        extra_env={**credential.extra_env, **gateway, "PODMENTOR_CONTROL": CONTROL_DIR},
    )
    return adapter.build_env(creds=creds, home=home)


def make_log(path: Path) -> None:
    """The empty log that conmon will append to: made first, so that it can be watched before the container starts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.open("wb").close()
    path.chmod(0o600)
