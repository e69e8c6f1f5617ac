"""How the parts of ``orchestrator.runs`` are put together, over whatever containers, relay and workspaces there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.config.models import Config, Paths
from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.audit import Audit
from orchestrator.contract.credentials import Credentialing
from orchestrator.contract.gateway import Relay
from orchestrator.contract.metrics import Metrics
from orchestrator.contract.sandbox import Runtime
from orchestrator.contract.traces import Traces
from orchestrator.contract.workspace import Workspaces
from orchestrator.runs.auth_container import AuthContainers
from orchestrator.runs.backends import Backends, BenchLookup
from orchestrator.runs.changes import Changes
from orchestrator.runs.driver import RunDriver
from orchestrator.runs.launch.grants import RunGrants
from orchestrator.runs.launch.launch import Launcher
from orchestrator.runs.limits.disk_limit import DiskLimit
from orchestrator.runs.limits.memory_watchdog import ProcessTable
from orchestrator.runs.observe.telemetry import Gauges, Telemetry
from orchestrator.runs.retention import Retention
from orchestrator.runs.service import Runs
from orchestrator.runs.storage.database import Database
from orchestrator.runs.storage.store import Store, StoredRun
from orchestrator.runs.stream.journal import Journal
from orchestrator.runs.stream.log_tail import LogWatcher
from orchestrator.runs.supervisor import Supervisor
from orchestrator.runs.teardown.teardown import Teardown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What is made of the parts, for those who start, serve, stop and test it."""

    store: Store
    journal: Journal
    telemetry: Telemetry
    auth_containers: AuthContainers
    supervisor: Supervisor
    backends: Backends
    runs: Runs
    changes: Changes
    gauges: Gauges


def assemble_runs(
    *,
    config: Config,
    paths: Paths,
    instance: str,
    adapters: Mapping[str, BaseAdapter],
    database: Database,
    logs: LogWatcher,
    processes: ProcessTable,
    runtime: Runtime,
    relay: Relay,
    workspaces: Workspaces,
    credentials: Credentialing,
    homes: SubscriptionHomes,
    audit: Audit,
    metrics: Metrics,
    traces: Traces,
    observed: BenchLookup,
) -> RunParts:
    """Nothing is started here, and what is handed in stays the caller's to close."""
    telemetry = Telemetry(metrics, traces, audit)
    journal, store = Journal(database, telemetry.appended), Store(database)
    auth_containers = AuthContainers.of(config, paths, runtime, instance)
    launcher = Launcher(
        config=config,
        paths=paths,
        instance=instance,
        adapters=adapters,
        store=store,
        runtime=runtime,
        workspaces=workspaces,
        credentials=credentials,
        homes=homes,
        audit=audit,
        telemetry=telemetry,
    )
    teardown = Teardown(
        runtime=runtime,
        relay=relay,
        workspaces=workspaces,
        store=store,
        homes=homes,
        auth_containers=auth_containers,
    )

    def new_driver(run: StoredRun, account: HomeKey | None) -> RunDriver:
        run_id = run.record.run_id
        return RunDriver(
            run,
            account,
            parser=adapters[run.record.backend].parser_for(run.resumed),
            log_path=paths.log_path(run_id),
            grants=RunGrants(run_id, relay=relay, store=store, paths=paths),
            disk=DiskLimit(
                run, store=store, workspaces=workspaces, homes=homes, paths=paths, walkers=processes.walkers
            ),
            launcher=launcher,
            teardown=teardown,
            runtime=runtime,
            processes=processes,
            journal=journal,
            logs=logs,
            store=store,
            telemetry=telemetry,
        )

    supervisor = Supervisor(
        config=config,
        paths=paths,
        adapters=adapters,
        store=store,
        journal=journal,
        runtime=runtime,
        workspaces=workspaces,
        homes=homes,
        audit=audit,
        telemetry=telemetry,
        teardown=teardown,
        new_driver=new_driver,
    )
    relay.listen(supervisor.egress_reported)
    backends = Backends(
        adapters=adapters,
        runtime=runtime,
        credentials=credentials,
        auth_containers=auth_containers,
        observed=observed,
    )
    retention = Retention(
        paths=paths,
        retention_days=config.storage.retention_days,
        store=store,
        workspaces=workspaces,
        runtime=runtime,
        audit=audit,
    )
    runs = Runs(
        config=config,
        paths=paths,
        store=store,
        journal=journal,
        runtime=runtime,
        workspaces=workspaces,
        audit=audit,
        supervisor=supervisor,
        backends=backends,
        retention=retention,
    )
    return RunParts(
        store=store,
        journal=journal,
        telemetry=telemetry,
        auth_containers=auth_containers,
        supervisor=supervisor,
        backends=backends,
        runs=runs,
        changes=Changes(store=store, workspaces=workspaces, audit=audit),
        gauges=Gauges(database=database, relay=relay, metrics=metrics, accepting=lambda: supervisor.accepting),
    )
