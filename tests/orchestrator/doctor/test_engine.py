from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.models import Config, ExternalAgentConfig, PodmanConfig, RunsConfig
from orchestrator.doctor import engine
from orchestrator.doctor.model import Subject
from orchestrator.doctor.probe import Output
from tests.fakes.doctor import DEVICE, IMAGE, good_info, good_machine, subject

TIER1 = Config(external_agent=ExternalAgentConfig(default_sandbox_tier=1))


def host_info(**changes: Any) -> dict[str, Any]:
    info = good_info()
    info["host"].update(changes)
    return info


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (Output(125, stderr="time=… level=info\nError: no runtime\n"), "Error: no runtime"),
        (Output(0, "not json"), "not JSON"),
        (Output(0, "[]"), "no JSON object"),
        (Output(None, stderr="did not end within 30 s"), "did not end"),
    ],
)
async def test_report_of_podman_that_is_none(output: Output, error: str) -> None:
    probe = good_machine()
    probe.outputs["podman", "info"] = output
    info, reported = await engine.podman_info(probe)
    assert info is None
    assert error in reported


@pytest.mark.parametrize(
    ("version", "status"), [("4.3.1", "ok"), ("5.4.2", "ok"), ("10.0.0-dev", "ok"), ("4.2.9", "failed"), ("", "failed")]
)
async def test_version(version: str, status: str) -> None:
    info = good_info()
    info["version"]["Version"] = version
    assert (await engine.podman(subject(good_machine(), info=info))).status == status


async def test_podman_missing_or_broken() -> None:
    probe = good_machine()
    broken = replace(subject(probe), info=None, info_error="Error: it is broken")
    finding = await engine.podman(broken)
    assert finding.status == "failed"
    assert "it is broken" in finding.detail
    changed = replace(broken, info_error='User-selected graph driver "overlay" overwritten by "vfs" from database')
    assert "podman system reset" in str((await engine.podman(changed)).fix)
    probe.commands.discard("podman")
    assert (await engine.podman(broken)).fix == "sudo apt-get install -y podman"


@pytest.mark.parametrize(
    "check",
    [engine.storage_driver, engine.memory_enforcement, engine.cpu_limits, engine.network_helper, engine.locks],
)
async def test_without_a_report_the_rest_says_that_it_cannot_tell(check: Any) -> None:
    finding = await check(replace(subject(good_machine()), info=None))
    assert finding.status == "warning"
    assert "cannot be checked" in finding.detail


@pytest.mark.parametrize(
    ("driver", "options", "status", "said"),
    [
        ("overlay", {}, "ok", "kernel"),
        ("overlay", {"overlay.mount_program": {"Executable": "/usr/bin/fuse-overlayfs"}}, "ok", "fuse-overlayfs"),
        ("btrfs", {}, "ok", "btrfs"),
        ("vfs", {}, "warning", "copies"),
    ],
)
async def test_storage_driver(driver: str, options: dict[str, Any], status: str, said: str) -> None:
    info = good_info()
    info["store"].update(graphDriverName=driver, graphOptions=options)
    finding = await engine.storage_driver(subject(good_machine(), info=info))
    assert finding.status == status
    assert said in finding.detail


@pytest.mark.parametrize(
    ("version", "controllers", "required", "status", "said"),
    [
        ("v2", ["memory", "pids"], False, "ok", "enforced by cgroup v2"),
        ("v2", ["memory"], True, "ok", "enforced by cgroup v2"),
        ("v2", ["pids"], False, "warning", "watchdog"),
        ("v2", None, False, "warning", "watchdog"),
        ("v1", ["memory"], False, "warning", "watchdog"),
        ("v1", [], True, "failed", "require_cgroup_limits"),
    ],
)
async def test_memory_enforcement(
    version: str, controllers: list[str] | None, required: bool, status: str, said: str
) -> None:
    info = host_info(cgroupVersion=version, cgroupControllers=controllers)
    config = Config(podman=PodmanConfig(require_cgroup_limits=required))
    finding = await engine.memory_enforcement(subject(good_machine(), info=info, config=config))
    assert finding.status == status
    assert said in finding.detail
    assert (finding.fix is None) == (status == "ok")


@pytest.mark.parametrize(
    ("version", "controllers", "cpus", "required", "status", "said"),
    [
        ("v2", ["cpu", "memory"], 2, True, "ok", "kept by cgroup"),
        ("v2", ["memory"], 2, False, "warning", "default_limits"),
        ("v1", ["cpu"], 2, False, "warning", "no effect"),
        ("v2", ["memory"], 2, True, "failed", "no effect"),
        ("v2", ["memory"], None, True, "ok", "none is configured"),
    ],
)
async def test_cpu_limits(
    version: str, controllers: list[str], cpus: float | None, required: bool, status: str, said: str
) -> None:
    """A limit that cannot be kept is not accepted in silence."""
    info = host_info(cgroupVersion=version, cgroupControllers=controllers)
    agents = ExternalAgentConfig.model_validate({"default_limits": {"cpus": cpus}})
    config = Config(external_agent=agents, podman=PodmanConfig(require_cgroup_limits=required))
    finding = await engine.cpu_limits(subject(good_machine(), info=info, config=config))
    assert finding.status == status
    assert said in finding.detail
    assert (finding.fix is None) == (status == "ok")


@pytest.mark.parametrize(
    ("version", "reported", "missing", "package"),
    [
        ("5.4.2", None, "pasta", "passt"),
        ("4.3.1", None, "slirp4netns", "slirp4netns"),
        ("4.9.0", "pasta", "pasta", "passt"),
        ("5.1.0", "slirp4netns", "slirp4netns", "slirp4netns"),
    ],
)
async def test_network_helper_missing(version: str, reported: str | None, missing: str, package: str) -> None:
    info = host_info(rootlessNetworkCmd=reported, **{missing: {"executable": ""}})
    info["version"]["Version"] = version
    probe = good_machine()
    probe.commands.discard(missing)
    finding = await engine.network_helper(subject(probe, info=info))
    assert (finding.status, finding.fix) == ("failed", f"sudo apt-get install -y {package}")
    assert (await engine.network_helper(subject(probe, info=info, config=TIER1))).status == "warning"


async def test_network_device() -> None:
    probe = good_machine()
    assert (await engine.network_helper(subject(probe))).status == "ok"
    probe.paths["/dev/net/tun"] = replace(DEVICE, readable=False, writable=False)
    assert (await engine.network_helper(subject(probe))).fix == "sudo chmod 0666 /dev/net/tun"
    del probe.paths["/dev/net/tun"]
    assert "mknod" in str((await engine.network_helper(subject(probe))).fix)


async def test_service_that_answers_is_used() -> None:
    probe = good_machine()
    own = "/run/user/999/podman/podman.sock"
    probe.paths[own] = DEVICE
    probe.answering.add(own)
    assert (await engine.podman_service(subject(probe))).detail == f"answers at {own}"
    as_url = host_info(remoteSocket={"path": f"unix://{own}"})
    assert (await engine.podman_service(subject(probe, info=as_url))).detail == f"answers at {own}"
    assert not probe.ran


async def test_service_is_started_for_a_try_when_none_answers() -> None:
    probe = good_machine()
    probe.paths["/run/user/999/podman/podman.sock"] = DEVICE  # left behind by one that died
    finding = await engine.podman_service(subject(probe))
    assert finding.status == "ok"
    assert probe.ran[0][:3] == ("podman", "system", "service")
    probe.serve_trouble = "Error: listen: permission denied"
    finding = await engine.podman_service(subject(probe))
    assert finding.status == "failed"
    assert "permission denied" in finding.detail


async def test_configured_socket_has_to_answer() -> None:
    probe = good_machine()
    config = Config(podman=PodmanConfig(socket=Path("/srv/podman.sock")))
    finding = await engine.podman_service(subject(probe, config=config))
    assert finding.status == "failed"
    assert "unix:///srv/podman.sock" in str(finding.fix)
    probe.answering.add("/srv/podman.sock")
    assert (await engine.podman_service(subject(probe, config=config))).status == "ok"
    assert not probe.ran


@pytest.mark.parametrize(("free", "status"), [(2000, "ok"), (64, "ok"), (63, "warning"), (3, "failed")])
async def test_free_locks(free: int, status: str) -> None:
    assert (await engine.locks(subject(good_machine(), info=host_info(freeLocks=free)))).status == status


async def test_free_locks_are_counted_where_podman_does_not_tell() -> None:
    info = host_info()
    del info["host"]["freeLocks"]
    info["store"]["containerStore"]["number"] = 1000
    probe = good_machine()
    probe.outputs["podman", "volume", "ls"] = Output(0, "volume\n" * 1000)
    finding = await engine.locks(subject(probe, info=info))
    assert finding.status == "warning"
    assert "48" in finding.detail
    many = Config(runs=RunsConfig(max_concurrent=500))
    assert (await engine.locks(subject(good_machine(), info=host_info(freeLocks=900), config=many))).status == "warning"


@pytest.mark.parametrize(
    ("listed", "status", "said"),
    [
        (IMAGE.tag, "ok", IMAGE.tag),
        ("localhost/podmentor/claude-code:2.0.0-ffffffffffff", "failed", "out of date"),
        ("localhost/podmentor/codex:1", "failed", "not built"),
        ("localhost/podmentor/claude-code-x:1", "failed", "not built"),
        ("localhost/podmentor/claude-code:current", "failed", "not built"),
        ("", "failed", "not built"),
    ],
)
async def test_images(listed: str, status: str, said: str) -> None:
    probe = good_machine()
    probe.outputs["podman", "images"] = Output(0, listed + "\n")
    [finding] = await engine.images(subject(probe))
    assert finding.status == status
    assert said in finding.detail
    assert finding.fix == (None if status == "ok" else "podmentor images build claude-code")


async def test_no_image_wanted_or_none_to_be_listed() -> None:
    probe = good_machine()
    nothing: Subject = subject(probe, images=())
    assert await engine.images(nothing) == []
    probe.outputs["podman", "images"] = Output(125, stderr="Error: broken\n")
    [finding] = await engine.images(subject(probe))
    assert (finding.status, finding.detail) == ("warning", "cannot be checked: Error: broken")
