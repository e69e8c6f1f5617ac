"""From an admitted run to a started sandbox."""

from __future__ import annotations

import hashlib
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.contract.adapter import BaseAdapter, GatewayRoute
from orchestrator.contract.audit import Audit
from orchestrator.contract.credentials import Credentialing, Resolved, SourceName
from orchestrator.contract.runs import RunFilter, RunRecord
from orchestrator.contract.sandbox import Runtime, SandboxSpec, StartedSandbox, WorkspaceMount
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import AuthRequiredError, ConflictError, PodmentorError
from orchestrator.runs.launch.command import RECAP_RUNS, argv_of, env_of, with_recap
from orchestrator.runs.launch.egress import apply_egress_policy, route_of, settle_egress
from orchestrator.runs.launch.grants import RunGrants, wall_clock_left
from orchestrator.runs.limits.resolve import enforcement_of
from orchestrator.runs.observe.telemetry import Telemetry
from orchestrator.runs.storage.store import Store, StoredRun

log = logging.getLogger(__name__)

LAST_RESORT_SECONDS: Final = 2.5
"""How much longer than the wall clock conmon lets a container live, when no service is there to end it politely."""


class Launcher:
    """Starts the sandboxes of runs, and gives them their grants again after a restart of the service."""

    def __init__(
        self,
        *,
        config: Config,
        paths: Paths,
        instance: str,
        adapters: Mapping[str, BaseAdapter],
        store: Store,
        runtime: Runtime,
        workspaces: Workspaces,
        credentials: Credentialing,
        homes: SubscriptionHomes,
        audit: Audit,
        telemetry: Telemetry,
    ) -> None:
        self._backends = config.external_agent.backends
        self._config = config
        self._paths = paths
        self._instance = instance
        self._adapters = adapters
        self._store = store
        self._runtime = runtime
        self._workspaces = workspaces
        self._credentials = credentials
        self._homes = homes
        self._audit = audit
        self._telemetry = telemetry

    async def launch(
        self,
        run: StoredRun,
        account: HomeKey | None,
        *,
        grants: RunGrants,
        check_disk: Callable[[WorkspaceMount, Path], Awaitable[None]],
        on_sandbox: Callable[[StoredRun], None],
    ) -> StartedSandbox:
        """Everything up to the started container.  Raises PodmentorError; what was made is the caller's to remove.

        ``account``: the subscription that the run may use, since it has waited for it.  ``check_disk`` raises when the
        subagent has too much on disk (in its workspace, and the home that is given) for a run to begin.
        ``on_sandbox``: handed the run with what is known of its sandbox, just before that is stored.
        """
        record = run.record
        adapter = self._adapters[record.backend]
        with self._telemetry.step(record.run_id, "credentials"):
            credential = await self._credential(record)
        subscription = credential.home is not None
        route = self._route(record, subscription=subscription)
        gateway = route is not None or not subscription
        if subscription:
            if account is None:
                raise ConflictError("an account was connected while this run was starting; run it again to use it")
            await self._homes.enter(record.run_id, account, adapter.credential_files)
        image = await self._runtime.image(adapter.image or adapter.name)
        with self._telemetry.step(record.run_id, "workspace"):
            prepared = await self._workspaces.prepare(
                subagent_id=record.subagent_id, source=run.source_path, mode=record.workspace
            )
            home = credential.home or prepared.home
            await check_disk(prepared.mount, home)
            prompt = await self._prompt(record, adapter)
            control_dir = await self._workspaces.make_control_dir(record.run_id, adapter.stdin_of(prompt))
        token = secrets.token_urlsafe(32)
        token_sha256 = hashlib.sha256(token.encode()).hexdigest()
        log_path = self._paths.log_path(record.run_id)
        make_log(log_path)
        sandbox_id = uuid.uuid4().hex
        record = replace(
            record,
            sandbox_id=sandbox_id,
            image_id=image.image_id,
            cli_version=image.cli_version,
            enforcement=enforcement_of(record.limits, self._runtime.enforcement),
            credential_source=credential.source,
            egress=settle_egress(self._config, adapter, record.egress, subscription=subscription),
        )
        run = replace(run, record=record, token_sha256=token_sha256)
        on_sandbox(run)
        await self._store.put_sandbox(run, log_path=log_path)
        if route is not None:
            await grants.open_gateway(record, route, credential.api_key, token_sha256=token_sha256)
        await grants.open_proxy(record)
        limits = record.limits
        spec = SandboxSpec(
            sandbox_id=sandbox_id,
            run_id=record.run_id,
            instance=self._instance,
            backend=record.backend,
            image_id=image.image_id,
            argv=argv_of(
                adapter,
                prompt,
                session_id=run.backend_session_id,
                model=record.model,
                binary=self._backends[record.backend].binary,
                gateway=gateway,
            ),
            env=apply_egress_policy(
                record.egress, env_of(adapter, credential, token, model=record.model, gateway=gateway)
            ),
            tier=record.tier,
            workspace=prepared.mount,
            home=home,
            control_dir=control_dir,
            log_path=log_path,
            memory_max_bytes=limits.memory_max_bytes,
            memory_by_cgroup=self._runtime.memory_by_cgroup,
            pids_max=limits.pids_max,
            cpus=limits.cpus,
            kill_after_seconds=max(1, int(wall_clock_left(record) + LAST_RESORT_SECONDS)),
            host_network=record.tier == 0 and self._config.podman.tier0_network == "host",
        )
        await self._audit.record(
            "run.started",
            user_id=record.user_id,
            run_id=record.run_id,
            backend=record.backend,
            subagent_id=record.subagent_id,
            tier=record.tier,
            credential_source=credential.source,
            cli_version=image.cli_version,
            image_id=image.image_id,
        )
        with self._telemetry.step(record.run_id, "start"):
            container_id = await self._runtime.create(spec)
            await self._store.update_sandbox(sandbox_id, container_id=container_id)
            return await self._runtime.start_sandbox(container_id)

    async def grant_again(self, run: StoredRun, account: HomeKey | None, grants: RunGrants) -> None:
        """Open what a run that is taken over had open, in case the relay is a new one.

        The run goes on without what cannot be opened, which is logged.
        """
        try:
            await self._gateway_again(run, account, grants)
        except PodmentorError as error:
            log.warning("run %s is taken over without a new gateway grant: %s", run.record.run_id, error.message)
        try:
            await grants.open_proxy(run.record)
        except PodmentorError as error:
            log.warning("run %s is taken over without its egress proxy: %s", run.record.run_id, error.message)

    async def _gateway_again(self, run: StoredRun, account: HomeKey | None, grants: RunGrants) -> None:
        record = run.record
        if run.token_sha256 is None:
            return
        api_key: str | None = None
        if account is None:
            credential = await self._credential(record, source=record.credential_source)
            if (api_key := credential.api_key) is None:
                raise AuthRequiredError("it has lost its account")
        if (route := self._route(record, subscription=account is not None)) is not None:
            await grants.open_gateway(record, route, api_key, token_sha256=run.token_sha256)

    async def _credential(self, record: RunRecord, *, source: SourceName | None = None) -> Resolved:
        """What the run uses to prove who it is, noted in the audit log: what cannot be noted is not used.

        ``source``: the credential source that it began with.  Raises what ``Credentialing.resolve`` does, and
        StorageError.
        """
        found = await self._credentials.resolve(user_id=record.user_id, backend=record.backend, source=source)
        await self._audit.record(
            "credential.used",
            user_id=record.user_id,
            backend=record.backend,
            run_id=record.run_id,
            credential_source=found.source,
        )
        return found

    def _route(self, record: RunRecord, *, subscription: bool) -> GatewayRoute | None:
        base_url = self._backends[record.backend].base_url
        return route_of(self._adapters[record.backend], subscription=subscription, tier=record.tier, base_url=base_url)

    async def _prompt(self, record: RunRecord, adapter: BaseAdapter) -> str:
        """The query, behind a recap of the conversation when the CLI cannot resume it."""
        if adapter.supports_resume:
            return record.query
        wanted = RunFilter(user_id=None, subagent_id=record.subagent_id, before=record.run_id, limit=RECAP_RUNS)
        return with_recap(await self._store.list_runs(wanted), record.query)


def make_log(path: Path) -> None:
    """The empty log that conmon will append to: made first, so that it can be watched before the container starts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.open("wb").close()
    path.chmod(0o600)


def has_output(log_path: Path) -> bool:
    """Whether a container has written to its log."""
    return log_path.exists() and log_path.stat().st_size > 0
