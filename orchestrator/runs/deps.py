"""What the parts of ``runs`` work with; put together once, by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import SubscriptionHomes
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.audit import Audit
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.gateway import Relay
from orchestrator.contract.metrics import NO_METRICS, Metrics
from orchestrator.contract.sandbox import Runtime
from orchestrator.contract.workspace import Workspaces
from orchestrator.runs.limits.memory_watchdog import ProcessTable
from orchestrator.runs.observe.tracing import Trails
from orchestrator.runs.storage.store import Store
from orchestrator.runs.stream.journal import Journal
from orchestrator.runs.stream.log_tail import LogWatcher

SeenLookup: TypeAlias = Callable[[str, str], Mapping[str, Any] | None]
"""What the bench saw of a backend in a CLI version; None when it has not been tried.  May block."""


def _nothing_seen(backend: str, cli_version: str) -> None:
    del backend, cli_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The collaborators of a run."""

    config: Config
    paths: Paths
    instance: str
    adapters: Mapping[str, BaseAdapter]
    store: Store
    journal: Journal
    watcher: LogWatcher
    runtime: Runtime
    relay: Relay
    processes: ProcessTable
    workspaces: Workspaces
    credentials: Credentialing
    homes: SubscriptionHomes
    audit: Audit
    seen: SeenLookup = _nothing_seen
    metrics: Metrics = NO_METRICS
    trails: Trails = field(default_factory=Trails)
