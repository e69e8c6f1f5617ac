"""Limits kept by cgroups, where cgroup v2 delegates them to this user; elsewhere all of this is skipped.

`scripts/test --vm` has machines where it is not.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.models import Config, Paths
from orchestrator.doctor import examine
from orchestrator.scripted import ScriptedProvider
from tests.podman import test_runtime
from tests.podman.live import LiveService, assert_nothing_left, live_service
from tests.podman.test_doctor import paths as paths  # noqa: PLC0414 -- fixtures
from tests.podman.test_runtime import MakeRuntime, MakeSpec, finish, inside, output
from tests.podman.test_runtime import image_name as image_name  # noqa: PLC0414
from tests.podman.test_runtime import instance as instance  # noqa: PLC0414
from tests.podman.test_runtime import make_runtime as make_runtime  # noqa: PLC0414
from tests.podman.test_runtime import make_spec as make_spec  # noqa: PLC0414
from tests.podman.test_runtime import runtime as runtime  # noqa: PLC0414

pytestmark = [pytest.mark.podman, pytest.mark.delegation]
MIB = 1024 * 1024
SECONDS = 600
"""For a run; an emulated machine is slow."""
HOG = "python3 -c 'b\"x\" * (900 << 20)'"
PATIENT = {"limits": {"start_seconds": SECONDS, "wall_clock_seconds": SECONDS}}


@pytest.fixture(params=["crun", "runc"])
def oci_runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each OCI runtime makes the cgroups in its own way."""
    name = str(request.param)
    if shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin") is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setattr(test_runtime, "OCI_RUNTIME", name)
    return name


@pytest.fixture
async def hog_service(tmp_path: Path, provider: ScriptedProvider, oci_runtime: str) -> AsyncIterator[LiveService]:
    """A service whose CLI is a script in the workspace."""
    async with live_service(
        tmp_path,
        provider.base_url,
        podman={"runtime": oci_runtime, "require_cgroup_limits": True},
        backend={"binary": "/workspace/cli", **PATIENT},
    ) as service:
        yield service


async def test_the_doctor_says_so(paths: Paths) -> None:
    findings = {finding.name: finding for finding in await examine(config=Config(), paths=paths, images=[])}
    assert findings["memory limits"].status == "ok"
    assert "enforced by cgroup v2" in findings["memory limits"].detail
    assert not [name for name, finding in findings.items() if finding.status == "failed"]


# --- what the container sees of its limits ---


async def test_processes_are_limited_by_the_cgroup(
    oci_runtime: str, make_runtime: MakeRuntime, make_spec: MakeSpec
) -> None:
    runtime = make_runtime()
    await runtime.start()
    runtime._host = replace(runtime._host, nproc_per_userns=False)  # else the limit of the user is met first
    script = "cat /sys/fs/cgroup/pids.max; i=0; while [ $i -lt 60 ]; do sleep 30 & i=$((i+1)); done; echo all"
    spec = make_spec(script, pids_max=20)
    await finish(runtime, spec)
    assert output(spec).splitlines()[0] == b"20"
    assert b"fork" in output(spec, "stderr").lower()


async def test_processor_time_is_limited_by_the_cgroup(
    oci_runtime: str, make_runtime: MakeRuntime, make_spec: MakeSpec
) -> None:
    runtime = make_runtime()
    await runtime.start()
    script = "cat /sys/fs/cgroup/cpu.max; timeout 5 sh -c 'while :; do :; done'; cat /sys/fs/cgroup/cpu.stat"
    first, *stat = (await inside(runtime, make_spec(script, cpus=0.5))).splitlines()
    quota, period = map(int, first.split())
    assert quota / period == 0.5
    counts = dict(line.split() for line in stat)
    assert int(counts["nr_throttled"]) > 0


async def test_swap_is_no_way_around_the_memory_limit(
    oci_runtime: str, make_runtime: MakeRuntime, make_spec: MakeSpec
) -> None:
    runtime = make_runtime()
    await runtime.start()
    assert runtime.memory_by_cgroup
    script = "cat /sys/fs/cgroup/memory.max; cat /sys/fs/cgroup/memory.swap.max 2>/dev/null || echo 0"
    spec = make_spec(script, memory_max_bytes=64 * MIB, memory_by_cgroup=True)
    assert (await inside(runtime, spec)).split() == [str(64 * MIB), "0"]


# --- what the service makes of an excess ---


def assert_ended_by_the_kernel(record: dict[str, Any], limit: int) -> None:
    assert record["outcome"] == "failed"
    assert record["error"]["reason"] == "memory_exceeded", record["error"]
    assert record["error"]["details"]["enforcement"] == "cgroup"
    assert record["error"]["details"]["limit_bytes"] == limit
    assert 0.9 * limit <= record["error"]["details"]["used_bytes"] <= 1.1 * limit
    assert record["enforcement"]["memory_max_bytes"] == "cgroup"


async def hog(service: LiveService, repo: Path, script: str, **limits: Any) -> tuple[dict[str, Any], list[Any]]:
    """A run whose CLI is this shell script, after it has printed a first line."""
    cli = repo / "cli"
    session = '{"type":"system","subtype":"init","session_id":"11111111-1111-4111-8111-111111111111","model":"m"}'
    cli.write_text(f"#!/bin/sh\necho '{session}'\n{script}\n")
    cli.chmod(0o755)
    run = await service.submit("x", repo=str(repo), limits=limits)
    record = await service.finished(run["run_id"], seconds=SECONDS)
    events = await service.all_events(run["run_id"])
    await assert_nothing_left(service, run["run_id"])
    return record, events


# One service for what follows on one another: under emulation its start takes longer than a run.


async def test_whoever_takes_too_much_memory_the_run_is_ended(hog_service: LiveService, repo: Path) -> None:
    limit = 96 * MIB

    # The agent's own process is the one that is killed, and at once: there is no time to measure it.
    record, events = await hog(hog_service, repo, "exec " + HOG, memory_max_bytes=limit)
    assert_ended_by_the_kernel(record, limit)
    assert [event["kind"] for event in events].count("session_started") == 1
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))

    # A tool is killed, and the agent would go on.
    record, _ = await hog(hog_service, repo, f"{HOG}; sleep 3600", memory_max_bytes=limit)
    assert_ended_by_the_kernel(record, limit)

    # Files in memory count as well: neither they nor the process alone would be too much.
    script = "head -c 60M /dev/zero >/tmp/a; python3 -c 'b\"x\" * (60 << 20)'; sleep 3600"
    record, _ = await hog(hog_service, repo, script, memory_max_bytes=limit)
    assert_ended_by_the_kernel(record, limit)


async def test_the_real_cli(tmp_path: Path, provider: ScriptedProvider, repo: Path) -> None:
    async with live_service(tmp_path, provider.base_url, backend=PATIENT) as service:
        # All of it once: a tool call, a file in the overlay, the answer; limits in force that nothing met.
        query = (
            "scenario: dump\nRUN: cd /sys/fs/cgroup; cat memory.max pids.max cpu.max; echo made > /workspace/made.txt"
        )
        run = await service.submit(query, repo=str(repo), limits={"cpus": 2})
        record = await service.finished(run["run_id"], seconds=SECONDS)
        assert record["outcome"] == "completed", record["error"]
        memory, pids, quota, period = map(int, re.findall(r"\d+", record["final_text"]))
        assert (memory, pids, quota / period) == (2048 * MIB, 512, 2)
        assert {record["enforcement"][name] for name in ("memory_max_bytes", "pids_max", "cpus")} == {"cgroup"}
        assert record["usage"]["peak_memory_bytes"] > 50_000_000
        changes = (await service.call("GET", f"/v1/subagents/{run['subagent_id']}/changes"))["changes"]
        assert [change["path"] for change in changes] == ["made.txt"]
        await assert_nothing_left(service, run["run_id"])

        # Then a tool of it that takes too much.
        limit = 700 * MIB
        query = "scenario: dump\nRUN: " + HOG.replace("900", "1500")
        run = await service.submit(query, repo=str(repo), limits={"memory_max_bytes": limit})
        record = await service.finished(run["run_id"], seconds=SECONDS)
        assert_ended_by_the_kernel(record, limit)
        kinds = [event["kind"] for event in await service.all_events(run["run_id"])]
        assert "tool_use" in kinds
        assert kinds[-1] == "error"
        await assert_nothing_left(service, run["run_id"])
