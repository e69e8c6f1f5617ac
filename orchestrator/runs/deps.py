"""What the parts of ``runs`` work with; put together once, by the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.config.models import Config, Paths
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.gateway import Relay
from orchestrator.contract.sandbox import Runtime
from orchestrator.contract.workspace import Workspaces
from orchestrator.runs.audit import AuditLog
from orchestrator.runs.journal import Journal
from orchestrator.runs.logtail import LogWatcher
from orchestrator.runs.memory import ProcessTable
from orchestrator.runs.store import Store


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

    @property
    def audit(self) -> AuditLog:
        """What was done with changes."""
        return AuditLog(self.paths.audit_log)
