"""The composition root of the service: with its neighbours the only module that knows concrete classes.

Objects are built in a visible order and handed what they need; they are closed in the opposite order.  Only one
service may own a state directory: the lock is taken first and given back last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from images.catalogue import installed_recipes
from images.upgrade import PodmanImageUpgrader
from orchestrator.api.app import create_app
from orchestrator.api.local_token import ensure_local_token
from orchestrator.api.server import start_servers
from orchestrator.api.tokens import TokenStore
from orchestrator.audit import AuditLog
from orchestrator.bench.seen import PACKAGED, SEEN_NAME, SeenFiles
from orchestrator.bootstrap.runs import RunParts, assemble_runs
from orchestrator.bootstrap.runtime import instance_id, make_directories, owned, podman_runtime
from orchestrator.bootstrap.vault import credential_chain, enabled_backends, open_vault, with_secrets
from orchestrator.config.environment import traces_target
from orchestrator.config.models import Config, EgressConfig, Paths
from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.egress import Network, UpstreamProxy
from orchestrator.contract.images import ImageUpgrader
from orchestrator.contract.metrics import BUILD, NO_METRICS, Metrics
from orchestrator.contract.traces import NO_TRACES, Traces
from orchestrator.contract.types import AuthStatus
from orchestrator.credentials import Homes, OwnKeys, probe_with_home
from orchestrator.doctor import Finding, WantedImage, examine
from orchestrator.registry import load_adapters
from orchestrator.relay.control.client import RelayProcess
from orchestrator.runs.accounts import Accounts
from orchestrator.runs.limits.memory_watchdog import ProcessTable
from orchestrator.runs.storage.database import Database
from orchestrator.runs.stream.log_tail import LogWatcher
from orchestrator.scripted import SAMPLE_FILES, ScriptedProvider
from orchestrator.telemetry import PrometheusMetrics, open_traces
from orchestrator.workspace import DirectoryWorkspaces

__all__ = ["SAMPLE_FILES", "ServiceHandle", "image_builder", "run_doctor", "running_service", "scripted_provider"]


@dataclass(slots=True, kw_only=True)
class ServiceHandle:
    """A service that runs in this process."""

    socket: Path
    token: str = field(repr=False)
    port: int | None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _drain: bool = False

    def request_stop(self, *, drain: bool = False) -> None:
        """Ask for the end.  ``drain``: wait for the runs that have begun; else their containers go on without us."""
        self._drain = self._drain or drain
        self._stopping.set()

    async def wait_stopped(self) -> None:
        """Until ``request_stop`` was called."""
        await self._stopping.wait()

    @property
    def drain(self) -> bool:
        """Whether to wait for the runs at the end."""
        return self._drain


@asynccontextmanager
async def running_service(config: Config, paths: Paths, *, listen_tcp: bool) -> AsyncIterator[ServiceHandle]:
    """A whole service for as long as the block lasts.  ``listen_tcp`` False: it is embedded in a command.

    Raises ConflictError when another one owns the state directory, RuntimeUnavailableError when Podman cannot be used.
    At the end: no more runs are taken, those that run are left to the next service (or waited for, with ``drain``).
    """
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(make_directories, paths)
        stack.enter_context(owned(paths.lock_file))
        config = await with_secrets(config, paths)
        metrics, release = PrometheusMetrics(), version("podmentor")
        traces = await asyncio.to_thread(
            open_traces,
            traces_target(config),
            version=release,
            instance=await asyncio.to_thread(instance_id, paths.state_dir),
            metrics=metrics,
        )
        stack.push_async_callback(traces.aclose)
        vault = await stack.enter_async_context(open_vault(config, paths))
        audit = AuditLog(paths.audit_log, metrics=metrics)
        credentials = credential_chain(config, paths, vault)
        service = await assemble(
            config, paths, stack, credentials=credentials, audit=audit, metrics=metrics, traces=traces
        )
        metrics.before_page(service.parts.gauges.look)
        metrics.put(BUILD, 1, version=release)
        app = create_app(
            runs=service.parts.runs,
            changes=service.parts.changes,
            accounts=service.accounts,
            tokens=service.tokens,
            credentials=credentials,
            own_keys=OwnKeys(vault, audit, enabled_backends(config)),
            metrics=metrics,
            config=config,
            instance=service.instance,
            version=release,
            embedded=not listen_tcp,
        )
        servers = await start_servers(
            app,
            host=config.server.host if listen_tcp else None,
            port=config.server.port,
            unix_socket=paths.api_socket,
        )
        stack.push_async_callback(servers.aclose)
        handle = ServiceHandle(
            socket=paths.api_socket,
            token=await asyncio.to_thread(ensure_local_token, paths),
            port=servers.port,
        )
        await audit.note("service.started", version=release, instance=service.instance)
        try:
            yield handle
        finally:
            await service.accounts.aclose()
            await service.parts.supervisor.stop(drain=handle.drain)
            service.parts.journal.close()
            await audit.note("service.stopped", left_running=len(service.parts.supervisor.left_running))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """Everything below the API."""

    instance: str
    parts: RunParts
    accounts: Accounts
    tokens: TokenStore


async def assemble(
    config: Config,
    paths: Paths,
    stack: AsyncExitStack,
    *,
    credentials: Credentialing,
    audit: AuditLog,
    image_tags: Mapping[str, str] | None = None,
    metrics: Metrics = NO_METRICS,
    traces: Traces = NO_TRACES,
) -> Assembled:
    """Everything below the API, started.  ``image_tags``: see PodmanRuntime.

    The caller closes accounts, supervisor and journal, in this order; then ``stack`` closes the rest.
    """
    instance = await asyncio.to_thread(instance_id, paths.state_dir)
    oneshot = [name for name, backend in config.external_agent.backends.items() if backend.oneshot]
    adapters = load_adapters(enabled_backends(config), oneshot=oneshot)
    database = Database(paths.database)
    stack.push_async_callback(database.aclose)
    await database.open()
    tokens = TokenStore(paths.database, local_token=await asyncio.to_thread(ensure_local_token, paths))
    await stack.enter_async_context(tokens)
    runtime = await podman_runtime(config, paths, instance, stack, image_tags=image_tags, metrics=metrics)
    names = () if config.egress.hosts_file is None else ("--resolve-file", str(config.egress.hosts_file))
    relay = RelayProcess(
        runtime_dir=paths.runtime_dir,
        log_path=paths.state_dir / "relay.log",
        network=network_of(config.egress),
        options=names,
    )
    processes = ProcessTable()
    stack.push_async_callback(processes.aclose)
    homes = Homes(paths.plugin_storage)
    parts = assemble_runs(
        config=config,
        paths=paths,
        instance=instance,
        adapters=adapters,
        database=database,
        logs=await stack.enter_async_context(LogWatcher()),
        processes=processes,
        runtime=runtime,
        relay=relay,
        workspaces=DirectoryWorkspaces(paths, runtime.delete_tree),
        credentials=credentials,
        homes=homes,
        audit=audit,
        metrics=metrics,
        traces=traces,
        observed=SeenFiles(PACKAGED, paths.state_dir / SEEN_NAME).lookup,
    )
    stack.push_async_callback(lambda: relay.aclose(keep=bool(parts.supervisor.left_running)))
    await relay.start()
    await parts.supervisor.start()

    async def ask_cli(adapter: BaseAdapter, key: HomeKey) -> AuthStatus:
        return await probe_with_home(
            adapter=adapter,
            plugin_storage=paths.plugin_storage,
            user_id=key.user_id,
            backend=key.backend,
            probe=parts.auth_containers,
        )

    accounts = Accounts(config=config, adapters=adapters, homes=homes, runs=parts.runs, prober=ask_cli, audit=audit)
    await accounts.start()
    return Assembled(instance=instance, parts=parts, accounts=accounts, tokens=tokens)


def network_of(egress: EgressConfig) -> Network:
    """How the relay reaches the internet."""
    if (given := egress.upstream_proxy) is None:
        return Network(ca_file=egress.ca_file)
    url = urlsplit(given.url)
    password = None if given.password is None else given.password.get_secret_value()
    return Network(
        ca_file=egress.ca_file,
        proxy=UpstreamProxy(
            host=url.hostname or "",
            port=url.port or 80,
            username=given.username,
            password=password,
            no_proxy=tuple(given.no_proxy),
        ),
    )


def image_builder(config: Config, paths: Paths) -> ImageUpgrader:
    """Builds, upgrades, lists and prunes the backends' images."""
    return PodmanImageUpgrader(
        state_dir=paths.state_dir,
        base=config.images.base,
        ca_bundle=config.images.ca_bundle,
        runtime=config.podman.runtime,
        extra_recipes=installed_recipes(),
    )


async def run_doctor(config: Config, paths: Paths) -> list[Finding]:
    """Check this machine for this user."""
    builder = image_builder(config, paths)
    enabled = [name for name, backend in config.external_agent.backends.items() if backend.enabled]
    wanted = await asyncio.to_thread(builder.wanted, [name for name in enabled if name in builder.backends()])
    images = [WantedImage(backend, tag) for backend, tag in wanted.items()]
    return await examine(config=config, paths=paths, images=images)


def scripted_provider(*, scenario: str, api_key: str, pace: float = 0.0) -> ScriptedProvider:
    """A model provider that follows a script; an async context manager with ``base_url``."""
    return ScriptedProvider(scenario=scenario, api_key=api_key, pace=pace)
