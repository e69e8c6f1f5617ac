"""The doctor on this very machine: whatever it finds, what it says must be true."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from orchestrator.config.models import Config, Paths
from orchestrator.doctor import SystemProbe, WantedImage, examine, working_runtime
from orchestrator.doctor.runtime import try_runtime

pytestmark = pytest.mark.podman


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return Paths(state_dir=state, runtime_dir=Path(os.environ["XDG_RUNTIME_DIR"]) / "podmentor")


async def test_the_runtime_found_runs_containers_and_is_remembered(paths: Paths, tmp_path: Path) -> None:
    found = await working_runtime(config=Config(), paths=paths)
    assert found is not None
    assert json.loads((paths.state_dir / "oci-runtime.json").read_text())["runtime"] == found
    assert await working_runtime(config=Config(), paths=paths) == found
    probe = SystemProbe()
    root = tmp_path / "root"
    assert await probe.make_rootfs(root) is None
    output = await try_runtime(probe, found, root)
    assert (output.code, "catatonit" in output.stdout) == (0, True)
    assert not (await try_runtime(probe, "no-such-runtime", root)).good


async def test_this_machine(paths: Paths) -> None:
    probe = SystemProbe()
    before = await containers(probe)
    missing = WantedImage("claude-code", "localhost/podmentor-no-such/claude-code:0-0")
    findings = {finding.name: finding for finding in await examine(config=Config(), paths=paths, images=[missing])}
    for name in (
        "user namespaces",
        "subordinate ids",
        "podman",
        "OCI runtime",
        "seccomp",
        "podman service",
        "state directory",
    ):
        assert findings[name].status == "ok", findings[name]
    assert findings["image claude-code"].status == "failed"
    assert not [
        finding for finding in findings.values() if "crashed" in finding.detail or "no result" in finding.detail
    ]
    assert sorted(path.name for path in paths.state_dir.iterdir()) == ["oci-runtime.json"]
    left = await containers(probe) - before
    async with asyncio.timeout(60):  # those of other checks that go on beside this one
        while left := left & await containers(probe):  # noqa: ASYNC110  # there is nothing to wait on
            await asyncio.sleep(0.2)


async def containers(probe: SystemProbe) -> set[str]:
    """Those of checks on this machine, whoever makes them."""
    listed = await probe.run("podman", "ps", "--all", "--filter", "name=podmentor-doctor", "--quiet")
    assert listed.good
    return set(listed.stdout.split())
