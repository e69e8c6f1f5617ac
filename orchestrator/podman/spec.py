"""From a SandboxSpec to the body of libpod's create call.  Pure: what it returns is all that Podman gets.

Every value from outside (argv, environment, labels) is data in a JSON document and is never part of a command line or
of an option string.  Paths are, in two places that Podman passes on as text (the overlay's mount options and conmon's
``--log-path``), so paths that would change their meaning there are refused.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from orchestrator.contract.sandbox import (
    CONTROL_DIR,
    HOME_DIR,
    LABEL_BACKEND,
    LABEL_INSTANCE,
    LABEL_RUN,
    LABEL_SANDBOX,
    WORKSPACE_DIR,
    SandboxSpec,
)
from orchestrator.errors import InvalidRequestError

AGENT_UID: Final = 1000
AGENT_GID: Final = 1000
NAME: Final = "podmentor-"
"""What the names of containers begin with; the sandbox id follows."""
HOSTNAME: Final = "podmentor"
STOP_TIMEOUT: Final = 2
"""Seconds between TERM and KILL when somebody else stops the container; the supervisor has its own ladder."""
LOG_SIZE: Final = 1 << 62
"""Bytes, for conmon: in effect none.  It must be said, or ``log_size_max`` of containers.conf would cut the log."""
SHM_BYTES: Final = 64 * 1024**2
TMP_BYTES_MIN: Final = 64 * 1024**2
TMP_BYTES_MAX: Final = 1024**3
FILES_MAX: Final = 65536
CPU_PERIOD: Final = 100_000
"""Microseconds."""

_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OPTION_SYNTAX = re.compile(r'[:,\\"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the payload needs to know of the machine (from Podman's ``info``)."""

    podman_version: tuple[int, ...] = (4, 3, 1)
    oci_runtime: str | None = None
    """None: Podman's own choice."""
    selinux: bool = False
    network_helper: Literal["slirp4netns", "pasta"] = "slirp4netns"
    controllers: frozenset[str] = field(default=frozenset())
    """Controllers that containers can be limited by: empty where rootless limits are ignored (cgroup v1)."""
    nproc_per_userns: bool = False
    """Linux 5.14 and later count RLIMIT_NPROC per user namespace, which makes it a limit of one container."""
    open_files: int | None = None
    """Our own hard limit of open files; None: there is none, and containers get Podman's choice."""
    ipc_sysctls: bool = False
    """Linux 5.19 and later let the owner of an IPC namespace set its limits."""
    seccomp_profile: str | None = None
    """Path of the profile to use; None: Podman's own."""


def create_payload(spec: SandboxSpec, *, host: HostFacts) -> dict[str, Any]:
    """The JSON body for ``POST /libpod/containers/create``.  Raises InvalidRequestError for what cannot be safe."""
    _check(spec)
    return {
        "name": f"{NAME}{spec.sandbox_id}",
        **_process(spec),
        **_privileges(host),
        **_filesystem(spec),
        **_namespaces(spec, host),
        **_limits(spec, host),
        "labels": {
            LABEL_RUN: spec.run_id,
            LABEL_INSTANCE: spec.instance,
            LABEL_SANDBOX: spec.sandbox_id,
            LABEL_BACKEND: spec.backend,
        },
        "log_configuration": {"driver": "none"}
        if spec.interactive
        else {"driver": "k8s-file", "path": str(spec.log_path), "size": LOG_SIZE},
        "restart_policy": "no",
        "healthconfig": {"Test": ["NONE"]},  # a health check of the image would run beside the agent
        "sdnotifyMode": "ignore",
        **({"oci_runtime": host.oci_runtime} if host.oci_runtime else {}),
    }


def _process(spec: SandboxSpec) -> dict[str, Any]:
    return {
        "image": spec.image_id,  # an ID never makes Podman ask a registry
        "raw_image_name": spec.image_id,
        "entrypoint": spec.argv[:1],  # given, so that neither ENTRYPOINT nor CMD of the image can add to it
        "command": spec.argv[1:],
        "env": dict(spec.env),
        "env_host": False,
        "httpproxy": False,
        "work_dir": WORKSPACE_DIR,
        "terminal": spec.interactive,
        "stdin": spec.interactive,
        "init": True,
        "systemd": "false",
        "stop_timeout": STOP_TIMEOUT,
        "timeout": spec.kill_after_seconds,
    }


def _privileges(host: HostFacts) -> dict[str, Any]:
    return {
        "user": f"{AGENT_UID}:{AGENT_GID}",
        "userns": {"nsmode": "keep-id", "value": f"uid={AGENT_UID},gid={AGENT_GID}"},
        "privileged": False,
        "cap_drop": ["all"],
        "cap_add": [],
        "no_new_privileges": True,
        "seccomp_policy": "default",
        **({"seccomp_profile_path": host.seccomp_profile} if host.seccomp_profile else {}),
        # Labels would have to be changed on the user's own files to let a confined container read them.
        **({"selinux_opts": ["disable"]} if host.selinux else {}),
    }


def _filesystem(spec: SandboxSpec) -> dict[str, Any]:
    tmp_bytes = max(TMP_BYTES_MIN, min(TMP_BYTES_MAX, spec.memory_max_bytes // 2))
    mounts = [
        _tmpfs("/tmp", tmp_bytes),  # noqa: S108 - the container's own
        _tmpfs("/dev/shm", SHM_BYTES, "noexec"),  # noqa: S108
        # "bind", not "rbind": a file system mounted below a read-only directory would stay writable.
        _bind(spec.home, HOME_DIR, "bind", "rw"),
        _bind(spec.control_dir, CONTROL_DIR, "bind", "ro"),
    ]
    workspace = spec.workspace
    overlays: list[dict[str, Any]] = []
    match workspace.mode:
        case "overlay":
            overlays.append(
                {
                    "destination": WORKSPACE_DIR,
                    "source": str(workspace.source),
                    "options": [f"upperdir={workspace.upper}", f"workdir={workspace.work}"],
                }
            )
        case "direct":
            mounts.append(_bind(workspace.source, WORKSPACE_DIR, "rbind", "rw"))
        case "readonly":
            mounts.append(_bind(workspace.source, WORKSPACE_DIR, "bind", "ro"))
    return {
        "read_only_filesystem": True,
        "image_volume_mode": "ignore",
        "mounts": mounts,
        "overlay_volumes": overlays,
    }


def _namespaces(spec: SandboxSpec, host: HostFacts) -> dict[str, Any]:
    private = {"nsmode": "private"}
    if spec.tier == 1:
        netns = "none"
    elif spec.host_network:
        netns = "host"
    else:  # named, not left to containers.conf, which may say "host"
        netns = host.network_helper
    return {
        "netns": {"nsmode": netns},
        "pidns": private,
        "ipcns": private,
        "utsns": private,
        "cgroupns": private,
        "hostname": HOSTNAME,
    }


def _limits(spec: SandboxSpec, host: HostFacts) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if spec.memory_by_cgroup:
        resources["memory"] = {"limit": spec.memory_max_bytes, "swap": spec.memory_max_bytes}
    if "pids" in host.controllers:
        resources["pids"] = {"limit": spec.pids_max}
    if spec.cpus is not None and "cpu" in host.controllers:
        resources["cpu"] = {"quota": max(1000, int(spec.cpus * CPU_PERIOD)), "period": CPU_PERIOD}
    rlimits = [{"type": "core", "soft": 0, "hard": 0}]
    if host.nproc_per_userns:
        rlimits.append({"type": "nproc", "soft": spec.pids_max, "hard": spec.pids_max})
    if host.open_files is not None:
        # The kernel counts descriptors on their way through sockets per user, up to the sender's limit: with a limit
        # as high as ours, one container could take all, and Podman could not start others.
        files = max(1, min(host.open_files // 2, FILES_MAX))
        rlimits.append({"type": "nofile", "soft": files, "hard": files})
    # System V shared memory goes with the last process that has it mapped, so that none of it can be hidden.
    sysctl = {"kernel.shm_rmid_forced": "1"} if host.ipc_sysctls else {}
    return {"resource_limits": resources, "r_limits": rlimits, "sysctl": sysctl}


def _tmpfs(destination: str, size: int, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["rw", "nosuid", "nodev", *options, "mode=1777", f"size={size}"],
    }


def _bind(source: Path, destination: str, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": [*options, "nosuid", "nodev", "rprivate"],
    }


# --- checks --------------------------------------------------------------------------------------------------------


def _check(spec: SandboxSpec) -> None:
    if not _IMAGE_ID.fullmatch(spec.image_id):
        raise InvalidRequestError(f"not an image ID (64 hexadecimal digits): {spec.image_id!r}")
    if not _NAME.fullmatch(spec.sandbox_id):
        raise InvalidRequestError(f"not a sandbox id: {spec.sandbox_id!r}")
    if spec.host_network and spec.tier != 0:
        raise InvalidRequestError("the host's network can only be given to tier 0")
    if not spec.argv or not spec.argv[0]:
        raise InvalidRequestError("the command is empty")
    for text in spec.argv:
        _check_text("an argument of the command", text)
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name):
            raise InvalidRequestError(f"not the name of an environment variable: {name!r}")
        _check_text(f"the environment variable {name}", value)
    for what, number in (
        ("memory_max_bytes", spec.memory_max_bytes),
        ("pids_max", spec.pids_max),
        ("kill_after_seconds", spec.kill_after_seconds),
        ("cpus", spec.cpus if spec.cpus is not None else 1),
    ):
        if not number > 0:
            raise InvalidRequestError(f"{what} must be above 0, not {number}")
    _check_paths(spec)


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise InvalidRequestError(f"{what} has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{what} is not valid Unicode text") from None


def _check_paths(spec: SandboxSpec) -> None:
    workspace = spec.workspace
    overlay = workspace.mode == "overlay"
    _check_path("the workspace", workspace.source, option=overlay)
    _check_path("the home directory", spec.home)
    _check_path("the control directory", spec.control_dir)
    _check_path("the log", spec.log_path, option=True)
    if not overlay:
        return
    if workspace.upper is None or workspace.work is None:
        raise InvalidRequestError("an overlay workspace needs an upper and a work directory")
    _check_path("the overlay's upper directory", workspace.upper, option=True)
    _check_path("the overlay's work directory", workspace.work, option=True)


def _check_path(what: str, path: Path, *, option: bool = False) -> None:
    text = str(path)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise InvalidRequestError(f"{what} needs an absolute path without '..', and not '/': {text!r}")
    _check_text(what, text)
    if _CONTROL.search(text):
        raise InvalidRequestError(f"{what} has a control character in its path: {text!r}")
    if option and (found := _OPTION_SYNTAX.search(text)):
        raise InvalidRequestError(f"{what} cannot be mounted, its path has a {found.group()!r} in it: {text!r}")
