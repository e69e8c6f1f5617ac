"""From an admitted run to a started sandbox."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from orchestrator.contract.accounts import HomeKey
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
    WorkspaceMount,
)
from orchestrator.contract.types import Credentials
from orchestrator.errors import ConflictError
from orchestrator.runs.clock import remaining, ways_out_end
from orchestrator.runs.deps import Deps
from orchestrator.runs.launch.egress import apply_egress_policy, settle_egress
from orchestrator.runs.launch.egress_proxy import EgressDoor
from orchestrator.runs.launch.gateway_route import route_of
from orchestrator.runs.launch.recap import RECAP_RUNS, with_recap
from orchestrator.runs.limits.resolve import enforcement_of
from orchestrator.runs.storage.store import StoredRun
from orchestrator.runs.stream.journal import to_json

ENTRY = "podmentor-entry"
"""First word of every container's command: starts the relays to the control directory's sockets, then the CLI."""
LAST_RESORT_SECONDS = 2.5
"""How much longer than the wall clock conmon lets a container live, when no service is there to end it politely."""
GATEWAY_URL = f"http://127.0.0.1:{GATEWAY_PORT}"
"""The gateway as a CLI in its container sees it."""


async def launch(
    run: StoredRun,
    deps: Deps,
    account: HomeKey | None,
    door: EgressDoor,
    check_disk: Callable[[WorkspaceMount, Path], Awaitable[None]],
) -> StartedSandbox:
    """Everything up to the started container.  Raises PodmentorError; what was made is the caller's to remove.

    ``account``: the subscription that the run may use, since it has waited for it.  ``check_disk`` raises when the
    subagent has too much on disk (in its workspace, and the home that is given) for a run to begin.
    """
    record = run.record
    adapter = deps.adapters[record.backend]
    with deps.trails.step(record.run_id, "credentials"):
        credential = await credential_of(run, deps)
    subscription = credential.home is not None
    base_url = deps.config.external_agent.backends[record.backend].base_url
    route = route_of(adapter, subscription=subscription, tier=record.tier, base_url=base_url)
    gateway = route is not None or not subscription
    if subscription:
        if account is None:
            raise ConflictError("an account was connected while this run was starting; run it again to use it")
        await deps.homes.enter(record.run_id, account, adapter.credential_files)
    image = await deps.runtime.image(adapter.image or adapter.name)
    with deps.trails.step(record.run_id, "workspace"):
        prepared = await deps.workspaces.prepare(
            subagent_id=record.subagent_id, source=run.source_path, mode=record.workspace
        )
        home = credential.home or prepared.home
        await check_disk(prepared.mount, home)
        prompt = await prompt_of(run, adapter, deps)
        control_dir = await deps.workspaces.make_control_dir(record.run_id, adapter.stdin_of(prompt))
    token = secrets.token_urlsafe(32)
    token_sha256 = hashlib.sha256(token.encode()).hexdigest()
    sandbox_id = uuid.uuid4().hex
    log_path = deps.paths.log_path(record.run_id)
    make_log(log_path)
    await deps.store.put_sandbox(
        record.run_id,
        sandbox_id=sandbox_id,
        subagent_id=record.subagent_id,
        image_id=image.image_id,
        log_path=log_path,
        cli_version=image.cli_version,
        token_sha256=token_sha256,
        enforcement=enforcement_of(record.limits, deps.runtime.enforcement),
        credential_link=credential.link,
    )
    if route is not None:
        await grant(run, deps, route, credential.api_key, token_sha256)
    egress = settle_egress(deps.config, adapter, record.egress, subscription=subscription)
    if egress is not None and egress != record.egress:
        await deps.store.update_run(record.run_id, egress=to_json(egress))
    await door.open()
    limits = record.limits
    spec = SandboxSpec(
        sandbox_id=sandbox_id,
        run_id=record.run_id,
        instance=deps.instance,
        backend=record.backend,
        image_id=image.image_id,
        argv=argv_of(run, prompt, adapter, deps, gateway=gateway),
        env=apply_egress_policy(egress, env_of(adapter, credential, token, gateway=gateway)),
        tier=record.tier,
        workspace=prepared.mount,
        home=home,
        control_dir=control_dir,
        log_path=log_path,
        memory_max_bytes=limits.memory_max_bytes,
        memory_by_cgroup=deps.runtime.memory_by_cgroup,
        pids_max=limits.pids_max,
        cpus=limits.cpus,
        kill_after_seconds=max(1, int(remaining(limits, record.started_at) + LAST_RESORT_SECONDS)),
        host_network=record.tier == 0 and deps.config.podman.tier0_network == "host",
    )
    await deps.audit.record(
        "run.started",
        user_id=record.user_id,
        run_id=record.run_id,
        backend=record.backend,
        subagent_id=record.subagent_id,
        tier=record.tier,
        credential=credential.link,
        cli_version=image.cli_version,
        image_id=image.image_id,
    )
    with deps.trails.step(record.run_id, "start"):
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


async def grant(run: StoredRun, deps: Deps, route: GatewayRoute, api_key: str | None, token_sha256: str) -> None:
    """Open the run's gateway (again).  ``api_key`` None: the CLI has its own login, which is passed through."""
    record = run.record
    await deps.relay.grant(
        GatewayGrant(
            run_id=record.run_id,
            socket_path=deps.paths.control_dir(record.run_id) / "gateway.sock",
            token_sha256=token_sha256,
            route=route,
            api_key=api_key,
            expires_at=ways_out_end(record.limits, record.started_at),
        )
    )


async def prompt_of(run: StoredRun, adapter: BaseAdapter, deps: Deps) -> str:
    """What the CLI is told: the query, behind a recap of the conversation when the CLI cannot resume it."""
    record = run.record
    if adapter.supports_resume:
        return record.query
    wanted = RunFilter(user_id=None, subagent_id=record.subagent_id, before=record.run_id, limit=RECAP_RUNS)
    return with_recap(await deps.store.list_runs(wanted), record.query)


def argv_of(run: StoredRun, prompt: str, adapter: BaseAdapter, deps: Deps, *, gateway: bool) -> list[str]:
    """The container's command."""
    argv = adapter.build_argv(prompt=prompt, session_id=run.backend_session_id, cwd=Path(WORKSPACE_DIR))
    binary = deps.config.external_agent.backends[adapter.name].binary
    return [ENTRY, binary or argv[0], *argv[1:], *(adapter.gateway_argv(GATEWAY_URL) if gateway else [])]


def env_of(adapter: BaseAdapter, credential: Resolved, token: str, *, gateway: bool = True) -> dict[str, str]:
    """The container's environment: the run's token where the CLI expects a key, never the key."""
    home = Path(HOME_DIR)
    way = adapter.gateway_env(GATEWAY_URL) if gateway else {}
    creds = Credentials(
        api_key=token if credential.api_key is not None else None,
        home=home,
        extra_env={**credential.extra_env, **way, "PODMENTOR_CONTROL": CONTROL_DIR},
    )
    return adapter.build_env(creds=creds, home=home)


def make_log(path: Path) -> None:
    """The empty log that conmon will append to: made first, so that it can be watched before the container starts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.open("wb").close()
    path.chmod(0o600)


def has_output(log: Path) -> bool:
    """Whether a container has written to its log."""
    return log.exists() and log.stat().st_size > 0
