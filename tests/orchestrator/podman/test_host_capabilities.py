import copy
from typing import Any

import pytest

from orchestrator.contract.seccomp import DEFAULT_SECCOMP
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.podman.host_capabilities import enforcement, host_facts, seccomp_profile, version_tuple
from orchestrator.podman.spec import HostFacts
from tests.fakes.libpod import INFO


def facts(kernel: str = "6.1.0-18-amd64", version: str = "4.3.1", **host: Any) -> HostFacts:
    info = copy.deepcopy(INFO)
    info["version"]["Version"] = version
    info["host"].update(host)
    return host_facts(info, oci_runtime="runc", kernel=kernel)


def test_controllers_count_only_with_cgroup_v2() -> None:
    assert facts().controllers == {"cpu", "memory", "pids"}
    assert facts(cgroupVersion="v1").controllers == frozenset()
    assert facts(cgroupControllers=None).controllers == frozenset()


@pytest.mark.parametrize("version", ["4.2.9", "3.4.4", "", "unknown"])
def test_an_old_podman_is_refused(version: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=r"4\.3 or newer"):
        facts(version=version)


def test_rootful_podman_is_refused() -> None:
    with pytest.raises(RuntimeUnavailableError, match="root"):
        facts(security={"rootless": False})


@pytest.mark.parametrize(
    ("kernel", "counted"), [("5.10.0-28", False), ("5.14.0", True), ("6.18.44-fc", True), ("?", False)]
)
def test_nproc_is_per_namespace_since_5_14(kernel: str, counted: bool) -> None:
    assert facts(kernel=kernel).nproc_per_userns is counted


@pytest.mark.parametrize(("kernel", "may"), [("5.18.0", False), ("5.19.0", True), ("6.1.0-18-amd64", True)])
def test_ipc_limits_can_be_set_since_5_19(kernel: str, may: bool) -> None:
    assert facts(kernel=kernel).ipc_sysctls is may


def test_how_limits_are_kept() -> None:
    assert enforcement(facts()) == {"memory_max_bytes": "cgroup", "pids_max": "cgroup", "cpus": "cgroup"}
    older = facts(cgroupVersion="v1")
    assert enforcement(older) == {"memory_max_bytes": "watchdog", "pids_max": "rlimit", "cpus": "none"}
    oldest = facts(cgroupVersion="v1", kernel="5.10.0")
    assert enforcement(oldest)["pids_max"] == "none"


@pytest.mark.parametrize(
    ("version", "host", "helper"),
    [
        ("4.3.1", {}, "slirp4netns"),
        ("4.9.3", {"pasta": {"executable": "/usr/bin/pasta"}}, "slirp4netns"),
        ("5.4.2", {"pasta": {"executable": "/usr/bin/pasta"}}, "pasta"),
        ("5.4.2", {"pasta": {"executable": "/usr/bin/pasta"}, "rootlessNetworkCmd": "slirp4netns"}, "slirp4netns"),
        ("5.4.2", {"pasta": {"executable": ""}}, "slirp4netns"),
        ("5.4.2", {"pasta": {}, "slirp4netns": {}}, "pasta"),
    ],
)
def test_the_network_helper_is_podman_s_own_default(version: str, host: dict[str, Any], helper: str) -> None:
    assert facts(version=version, **host).network_helper == helper


def test_selinux_and_runtime_are_taken_over() -> None:
    made = facts(security={"rootless": True, "selinuxEnabled": True})
    assert (made.selinux, made.oci_runtime, made.podman_version) == (True, "runc", (4, 3, 1))


def test_versions() -> None:
    assert version_tuple("5.4.2-rc1") == (5, 4, 2)


def test_podmans_seccomp_profile_is_where_it_says() -> None:
    assert seccomp_profile({"host": {"security": {"seccompProfilePath": "/etc/x.json"}}}) == "/etc/x.json"
    assert seccomp_profile({"host": {"security": {}}}) == seccomp_profile({}) == DEFAULT_SECCOMP
