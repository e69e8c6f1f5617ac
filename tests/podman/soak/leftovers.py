"""Counts what is left when all runs have ended; every count should be zero."""

from __future__ import annotations

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from orchestrator.config.models import Paths
from orchestrator.contract.sandbox import LABEL_INSTANCE
from orchestrator.credentials.homes import Homes
from orchestrator.relay.control.client import RelayProcess
from tests.podman.live import LiveService, podman, processes_with
from tests.podman.soak.eyes import Eyes

SERVICE_FILES = {"api.sock", "podman.sock", "podman.lock", "podman-service.log"}
"""What belongs in the runtime directory of a service that has no runs."""

Leftovers = dict[str, list[str]]


async def with_service(service: LiveService, eyes: Eyes) -> Leftovers:
    """While the service still runs: nothing of any run should be there."""
    paths = Paths(state_dir=service.state, runtime_dir=service.runtime)
    containers, sandboxes = _made(paths.database)
    return {
        "containers": await _containers(service.state, sandboxes),
        "containers' directories": await _container_dirs(containers),
        "processes": await _processes(service, eyes, containers),
        "mounts": await _mounts(service, containers),
        "sockets": _sockets(service.runtime),
        "directories": _directories(service.runtime),
        "grants of the relay": await _grants(paths),
        "leases": sorted(await Homes(paths.plugin_storage).leases()),
    }


async def without_service(service: LiveService) -> Leftovers:
    """After all conversations were deleted and the service has ended: nothing but its own files should be there."""
    places = (service.state / "runs", service.state / "subagents")
    dirs = [str(path) for place in places for path in place.iterdir()]
    found = {*processes_with(str(service.runtime)), *processes_with(str(service.state))}
    return {
        "run directories, overlays": dirs,
        "processes of the service": [f"{pid}: {_words(pid)}" for pid in sorted(found)],
        "sockets of the service": _sockets(service.runtime, but=frozenset()),
    }


def _made(database: Path) -> tuple[set[str], set[str]]:
    """Containers and sandboxes that there ever were."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT container_id, sandbox_id FROM sandboxes").fetchall()
    return {row[0] for row in rows if row[0]}, {row[1] for row in rows}


async def _containers(state: Path, sandboxes: set[str]) -> list[str]:
    """By label, and those that only the storage knows by name."""
    instance = (state / "instance").read_text().strip()
    found = []
    for row in json.loads(await podman("ps", "-a", "--external", "--format", "json")):
        names = row.get("Names") or []
        ours = any(name.removeprefix("podmentor-")[:32] in sandboxes for name in names)
        if ours or (row.get("Labels") or {}).get(LABEL_INSTANCE) == instance:
            found.append(f"{row['Id'][:12]} {' '.join(names)} {row.get('State')}")
    return found


async def _container_dirs(containers: set[str]) -> list[str]:
    store = json.loads(await podman("info", "--format", "json"))["store"]
    run = Path(store["runRoot"])
    places = [
        Path(store["graphRoot"]) / "overlay-containers",
        run / "overlay-containers",
        run.parent / "runc",
        run.parent / "crun",
        run.parent / "libpod" / "tmp" / "exits",
    ]
    return [str(place / name) for place in places for name in sorted(containers) if (place / name).exists()]


async def _processes(service: LiveService, eyes: Eyes, containers: set[str]) -> list[str]:
    found = {pid for pids in (await eyes.look()).values() for pid in pids}
    for name in containers:
        found.update(processes_with(name))
    found.update(processes_with(str(service.state / "runs")))
    return [f"{pid}: {_words(pid)}" for pid in sorted(found)]


async def _mounts(service: LiveService, containers: set[str]) -> list[str]:
    inside = await podman("unshare", "cat", "/proc/self/mountinfo")
    marks = [str(service.state), str(service.runtime), *containers]
    lines = {*inside.splitlines(), *Path("/proc/self/mountinfo").read_text().splitlines()}
    return [line for line in sorted(lines) if any(mark in line for mark in marks)]


def _sockets(runtime: Path, *, but: frozenset[str] = frozenset(SERVICE_FILES)) -> list[str]:
    found = []
    for path in runtime.rglob("*"):
        relay = path.parent == runtime and path.name.startswith("relay") and but
        if stat.S_ISSOCK(path.lstat().st_mode) and not relay and path.relative_to(runtime).as_posix() not in but:
            found.append(str(path))
    return found


def _directories(runtime: Path) -> list[str]:
    return [str(path) for path in runtime.iterdir() if path.is_dir()]


async def _grants(paths: Paths) -> list[str]:
    relay = RelayProcess(runtime_dir=paths.runtime_dir, log_path=paths.state_dir / "relay.log")
    try:
        return sorted(await relay.granted())
    finally:
        await relay.aclose(keep=True)


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(ended)"
