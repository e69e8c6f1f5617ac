"""The composition root: the only module that knows every concrete class.

Objects are built in a visible order and handed what they need; they are let go of in the opposite order.  Only one
service may own a state directory: the lock is taken first and given back last.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from images.outside import installed_recipes
from images.upgrade import PodmanImageUpgrader
from orchestrator.api.app import create_app
from orchestrator.api.server import start_servers
from orchestrator.api.tokens import TokenStore, ensure_local_token
from orchestrator.audit import AuditLog
from orchestrator.bench.seen import PACKAGED, SEEN_NAME, SeenFiles
from orchestrator.bootstrap_vault import credential_chain, enabled_backends, open_vault, with_secrets
from orchestrator.config.environment import process_environment
from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.images import ImageUpgrader
from orchestrator.contract.types import AuthStatus
from orchestrator.credentials import Homes, OwnKeys, probe_with_home
from orchestrator.doctor import Finding, WantedImage, examine, working_runtime
from orchestrator.egress.client import RelayProcess
from orchestrator.errors import ConflictError, StorageError
from orchestrator.podman.environment import podman_environment
from orchestrator.podman.runtime import PodmanRuntime
from orchestrator.podman.trees import delete_tree
from orchestrator.registry import ADAPTER_REGISTRY, load_adapters
from orchestrator.runs.accounts import Accounts
from orchestrator.runs.aside import Aside
from orchestrator.runs.database import Database
from orchestrator.runs.deps import Deps
from orchestrator.runs.journal import Journal
from orchestrator.runs.logtail import LogWatcher
from orchestrator.runs.memory import ProcessTable
from orchestrator.runs.service import Runs
from orchestrator.runs.space import refuse_full
from orchestrator.runs.store import Store
from orchestrator.runs.supervisor import Supervisor
from orchestrator.scripted import SAMPLE_FILES, ScriptedProvider, spoken
from orchestrator.workspace.prepare import DirectoryWorkspaces

__all__ = [
    "ADAPTER_REGISTRY",
    "SAMPLE_FILES",
    "Aside",
    "AuditLog",
    "ServiceHandle",
    "delete_tree",
    "image_builder",
    "load_adapters",
    "run_doctor",
    "running_service",
    "scripted_provider",
    "spoken",
]  # fmt: skip

log = logging.getLogger(__name__)


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
    """A whole service for as long as the block lasts.

    Raises ConflictError when another one owns the state directory, RuntimeUnavailableError when Podman cannot be used.
    At the end: no more runs are taken, those that run are left to the next service (or waited for, with ``drain``).
    """
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(make_directories, paths)
        stack.enter_context(owned(paths.lock_file))
        config = await with_secrets(config, paths)
        vault = await stack.enter_async_context(open_vault(config, paths))
        audit = AuditLog(paths.audit_log)
        credentials = credential_chain(config, paths, vault)
        runs, accounts, supervisor, tokens, journal, instance = await assemble(
            config, paths, stack, credentials=credentials, audit=audit
        )
        app = create_app(
            runs=runs, accounts=accounts, tokens=tokens, credentials=credentials,
            own_keys=OwnKeys(vault, audit, enabled_backends(config)), config=config, instance=instance,
            version=version("podmentor"),
        )  # fmt: skip
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
        try:
            yield handle
        finally:
            await accounts.aclose()
            await supervisor.stop(drain=handle.drain)
            journal.close()


async def assemble(
    config: Config,
    paths: Paths,
    stack: AsyncExitStack,
    *,
    credentials: Credentialing,
    audit: AuditLog,
    image_tags: Mapping[str, str] | None = None,
) -> tuple[Runs, Accounts, Supervisor, TokenStore, Journal, str]:
    """Everything below the API, started; what must be let go of is on ``stack``.  ``image_tags``: see PodmanRuntime."""
    instance = await asyncio.to_thread(instance_id, paths.state_dir)
    oneshot = [name for name, backend in config.external_agent.backends.items() if backend.oneshot]
    adapters = load_adapters(enabled_backends(config), oneshot=oneshot)
    database = Database(paths.database)
    stack.push_async_callback(database.aclose)
    await database.open()
    journal, store = Journal(database), Store(database)
    tokens = TokenStore(paths.database, local_token=await asyncio.to_thread(ensure_local_token, paths))
    await stack.enter_async_context(tokens)
    runtime = await podman_runtime(config, paths, instance, stack, image_tags=image_tags)
    names = () if config.egress.hosts_file is None else ("--resolve-file", str(config.egress.hosts_file))
    relay = RelayProcess(runtime_dir=paths.runtime_dir, log_path=paths.state_dir / "relay.log", options=names)
    processes = ProcessTable()
    stack.push_async_callback(processes.aclose)
    watcher = await stack.enter_async_context(LogWatcher())
    homes = Homes(paths.plugin_storage)
    supervisor = Supervisor(
        deps := Deps(
            config=config,
            paths=paths,
            instance=instance,
            adapters=adapters,
            store=store,
            journal=journal,
            watcher=watcher,
            runtime=runtime,
            relay=relay,
            processes=processes,
            workspaces=DirectoryWorkspaces(paths, runtime.delete_tree),
            credentials=credentials,
            homes=homes,
            audit=audit,
            seen=SeenFiles(PACKAGED, paths.state_dir / SEEN_NAME).lookup,
        )
    )
    stack.push_async_callback(lambda: relay.aclose(keep=bool(supervisor.let_go)))
    await relay.start()
    await supervisor.start()
    runs = Runs(deps, supervisor)
    aside = Aside.of(config, paths, runtime, instance)

    async def ask_cli(adapter: BaseAdapter, key: HomeKey) -> AuthStatus:
        return await probe_with_home(
            adapter=adapter,
            plugin_storage=paths.plugin_storage,
            user_id=key.user_id,
            backend=key.backend,
            probe=aside,
        )

    accounts = Accounts(config=config, adapters=adapters, homes=homes, runs=runs, prober=ask_cli)
    await accounts.start()
    return runs, accounts, supervisor, tokens, journal, instance


async def podman_runtime(
    config: Config,
    paths: Paths,
    instance: str,
    stack: AsyncExitStack,
    *,
    image_tags: Mapping[str, str] | None = None,
) -> PodmanRuntime:
    """The runtime, started; ``stack`` lets go of it.  ``image_tags``: images to use instead of the current ones."""
    runtime = PodmanRuntime(
        config=config.podman,
        runtime_dir=paths.runtime_dir,
        instance=instance,
        oci_runtime=await working_runtime(config=config, paths=paths),
        owned_roots=(paths.state_dir, paths.runtime_dir),
        image_tags=image_tags,
        service_env=podman_environment(process_environment()),  # Podman and conmon need no keys
    )
    stack.push_async_callback(runtime.aclose)
    await runtime.start()
    return runtime


def make_directories(paths: Paths) -> None:
    """State and runtime directory, for nobody but us.  Raises StorageError."""
    try:
        for directory in (paths.state_dir, paths.runtime_dir, paths.state_dir / "runs", paths.state_dir / "subagents"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_full(paths.state_dir)
    except OSError as error:
        raise StorageError(f"cannot make {error.filename}: {error.strerror}") from error


@contextmanager
def owned(lock_file: Path) -> Iterator[None]:
    """Hold the state directory.  The lock goes with the process, however it ends.  Raises ConflictError."""
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise ConflictError(
                f"another podmentor service (process {holder or 'unknown'}) uses {lock_file.parent}; stop it, or give "
                "this one another state directory (--state)"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def instance_id(state_dir: Path) -> str:
    """What tells this state directory's containers from those of others; made once."""
    path = state_dir / "instance"
    try:
        with path.open("x") as file:
            file.write(uuid.uuid4().hex)
    except FileExistsError:
        log.debug("known state directory")
    return path.read_text().strip()


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
