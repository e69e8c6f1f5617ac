"""The bench's surroundings: one backend with a service and a provider of its own, from the composition root's parts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from orchestrator.audit import AuditLog
from orchestrator.bench.fixture import Stage
from orchestrator.bench.results import Usage
from orchestrator.bench.runner import clear
from orchestrator.bootstrap.runtime import make_directories, owned
from orchestrator.bootstrap.service import assemble, image_builder, scripted_provider
from orchestrator.bootstrap.vault import credential_chain
from orchestrator.config.models import BackendConfig, Config, ExternalAgentConfig, Paths, RunsConfig, StorageConfig
from orchestrator.config.paths import resolve_paths
from orchestrator.errors import StorageError
from orchestrator.podman.delete_tree import delete_tree
from orchestrator.registry import ADAPTER_REGISTRY, load_adapters
from orchestrator.scripted import SAMPLE_FILES, counted, spoken

__all__ = ["bench_stage", "benchable", "image_builder"]

log = logging.getLogger(__name__)


def benchable(config: Config, paths: Paths) -> list[str]:
    """The installed backends that have an image of their own."""
    recipes = image_builder(config, paths).backends()
    return [name for name in ADAPTER_REGISTRY if name in recipes]


@asynccontextmanager
async def bench_stage(
    config: Config, backend: str, *, place: Path, image_tag: str | None, jobs: int
) -> AsyncIterator[Stage]:
    """One backend with a service and a provider of its own, below ``place``, which is removed at the end.

    ``image_tag``: the image to try instead of the current one.  Raises ConfigError (no such adapter), ConflictError
    (another bench is at work there) and what starting a service may raise.
    """
    (adapter,) = load_adapters([backend]).values()
    prompt, cached, output = counted("text")
    key = f"sk-bench-{secrets.token_hex(20)}"
    async with scripted_provider(scenario="text", api_key=key) as provider, AsyncExitStack() as stack:
        own = bench_config(config, backend, place=place, key=key, base_url=provider.base_url, jobs=jobs)
        paths = await asyncio.to_thread(resolve_paths, own)
        await asyncio.to_thread(make_directories, paths)
        stack.enter_context(owned(paths.lock_file))
        # Runs before the lock is given back: only what holds it may remove the place.
        stack.push_async_callback(_remove, place, paths.runtime_dir)
        tags = {adapter.image or backend: image_tag} if image_tag is not None else None
        service = await assemble(
            own,
            paths,
            stack,
            credentials=credential_chain(own, paths, None),
            audit=AuditLog(paths.audit_log),
            image_tags=tags,
        )
        runs, supervisor = service.parts.runs, service.parts.supervisor
        await asyncio.to_thread(_sample_repo, place / "repo")
        try:
            await clear(runs)  # what a bench has left that was killed
            yield Stage(
                adapter=adapter,
                runs=runs,
                changes=service.parts.changes,
                provider=provider,
                spoken=spoken,
                usage=Usage(prompt=prompt, cached=cached, output=output),
                key=key,
                paths=paths,
                repo=place / "repo",
                leftovers=supervisor.leftovers,
            )
        finally:
            await clear(runs)
            await supervisor.stop(drain=False)
            service.parts.journal.close()


def bench_config(config: Config, backend: str, *, place: Path, key: str, base_url: str, jobs: int) -> Config:
    """The user's machine settings (Podman, images) with the bench's own backend and state, and nothing else."""
    return Config(
        external_agent=ExternalAgentConfig(
            default_sandbox_tier=1, backends={backend: BackendConfig(api_key=SecretStr(key), base_url=base_url)}
        ),
        storage=StorageConfig(state_dir=place / "state"),
        podman=config.podman,
        images=config.images,
        runs=RunsConfig(max_concurrent=2 * jobs),
    )


def _sample_repo(repo: Path) -> None:
    repo.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, content in SAMPLE_FILES.items():
        (repo / name).write_text(content, encoding="utf-8")


async def _remove(*directories: Path) -> None:
    """Also what an overlay has left that only the user namespace's root may enter."""
    for directory in directories:
        try:
            await delete_tree(directory, roots=(directory.parent,))
        except StorageError as error:
            log.warning("%s", error.message)
