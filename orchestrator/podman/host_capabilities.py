"""What the machine can do, from Podman's ``info``.  Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from orchestrator.contract.seccomp import source_of
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.podman.spec import HostFacts

MIN_PODMAN: Final = (4, 3)
"""keep-id with uid= and gid= appeared there."""
NPROC_KERNEL: Final = (5, 14)
IPC_KERNEL: Final = (5, 19)


def host_facts(info: Mapping[str, Any], *, oci_runtime: str | None, kernel: str) -> HostFacts:
    """Raises RuntimeUnavailableError when podmentor cannot work with this Podman."""
    host: Mapping[str, Any] = info.get("host") or {}
    security: Mapping[str, Any] = host.get("security") or {}
    version = version_tuple(str((info.get("version") or {}).get("Version", "")))
    if version < MIN_PODMAN:
        raise RuntimeUnavailableError(f"Podman {'.'.join(map(str, version)) or '?'} is too old: 4.3 or newer is needed")
    if not security.get("rootless", False):
        raise RuntimeUnavailableError("this Podman runs as root: use the service of an ordinary user (rootless Podman)")
    controllers = host.get("cgroupControllers") or []
    return HostFacts(
        podman_version=version,
        oci_runtime=oci_runtime,
        selinux=bool(security.get("selinuxEnabled", False)),
        network_helper=_network_helper(host, version),
        # With cgroup v1 rootless limits are accepted and then ignored.
        controllers=frozenset(map(str, controllers)) if host.get("cgroupVersion") == "v2" else frozenset(),
        nproc_per_userns=version_tuple(kernel) >= NPROC_KERNEL,
        ipc_sysctls=version_tuple(kernel) >= IPC_KERNEL,
    )


def enforcement(host: HostFacts) -> dict[str, str]:
    """How the limits are kept that containers are given: see ``spec``, which asks for them."""
    pids = "cgroup" if "pids" in host.controllers else "rlimit" if host.nproc_per_userns else "none"
    return {
        "memory_max_bytes": "cgroup" if "memory" in host.controllers else "watchdog",
        "pids_max": pids,
        "cpus": "cgroup" if "cpu" in host.controllers else "none",
    }


def seccomp_profile(info: Mapping[str, Any]) -> str:
    """Path of the profile that Podman uses by default."""
    security: Mapping[str, Any] = (info.get("host") or {}).get("security") or {}
    return source_of(security.get("seccompProfilePath"))


def _network_helper(host: Mapping[str, Any], version: tuple[int, ...]) -> Literal["slirp4netns", "pasta"]:
    if version < (5, 0):  # pasta is optional in 4.4 to 4.9, and not the default
        return "slirp4netns"
    if host.get("rootlessNetworkCmd") == "slirp4netns":
        return "slirp4netns"
    pasta, slirp = ((host.get(name) or {}).get("executable") for name in ("pasta", "slirp4netns"))
    return "slirp4netns" if slirp and not pasta else "pasta"


def version_tuple(text: str) -> tuple[int, ...]:
    """``5.4.2-rc1`` -> (5, 4, 2); empty when it does not begin with a number."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
