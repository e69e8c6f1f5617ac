"""A machine made of dictionaries, on which everything is as it should be until a test changes it."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.config.models import Config, Paths
from orchestrator.doctor.model import Info, Subject, WantedImage
from orchestrator.doctor.probe import Output, PathFacts

UID, USER = 999, "agentsmith"
STATE = Path("/var/lib/agentsmith/state")
RUNTIME = Path("/run/user/999/podmentor")
IMAGE = WantedImage("claude-code", "localhost/podmentor/claude-code:2.1.197-0123456789ab")
SECCOMP = "/usr/share/containers/seccomp.json"
OURS = PathFacts(
    uid=UID,
    mode=0o700,
    is_dir=True,
    readable=True,
    writable=True,
    device=1,
    free_bytes=100 * 1024**3,
    free_inodes=10**6,
)
DEVICE = replace(OURS, uid=0, mode=0o666, is_dir=False)
HELPER = replace(OURS, uid=0, mode=0o755, is_dir=False, writable=False, privileged=True)
MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /proc rw - proc proc rw
23 21 0:21 / /run rw,nosuid shared:5 - tmpfs tmpfs rw
"""


def good_info() -> dict[str, Any]:
    """`podman info` of a machine that lacks nothing."""
    return {
        "host": {
            "cgroupVersion": "v2",
            "cgroupControllers": ["cpu", "memory", "pids"],
            "freeLocks": 2040,
            "ociRuntime": {"name": "crun", "path": "/usr/bin/crun"},
            "pasta": {"executable": "/usr/bin/pasta"},
            "slirp4netns": {"executable": "/usr/bin/slirp4netns"},
            "remoteSocket": {"path": "/run/user/999/podman/podman.sock"},
            "security": {"selinuxEnabled": False, "seccompEnabled": True, "seccompProfilePath": SECCOMP},
        },
        "store": {
            "graphDriverName": "overlay",
            "graphOptions": {},
            "graphRoot": "/var/lib/agentsmith/storage",
            "runRoot": "/run/user/999/containers",
            "containerStore": {"number": 0},
        },
        "version": {"Version": "5.4.2"},
    }


@dataclass
class FakeProbe:
    """``outputs`` maps the words a command line contains, in order, to what it prints; the last entry that fits counts."""

    uid: int = UID
    user: str = USER
    files: dict[str, str] = field(default_factory=dict)
    paths: dict[str, PathFacts] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)
    outputs: dict[tuple[str, ...], Output] = field(default_factory=dict)
    answering: set[str] = field(default_factory=set)
    serve_trouble: str | None = None
    rootfs_trouble: str | None = None
    hangs: set[str] = field(default_factory=set)
    ran: list[tuple[str, ...]] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    async def run(self, *argv: str, timeout: float = 20.0) -> Output:
        self.ran.append(argv)
        if self.hangs.intersection(argv):
            await asyncio.Event().wait()
        fitting = [output for words, output in self.outputs.items() if set(words) <= set(argv)]
        return fitting[-1] if fitting else Output(127, stderr=f"{argv[0]}: unexpected")

    async def read(self, path: Path) -> str | None:
        return self.files.get(str(path))

    async def facts(self, path: Path) -> PathFacts | None:
        return self.paths.get(str(path))

    async def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.commands else None

    async def ping(self, socket: Path, *, timeout: float = 5.0) -> str | None:
        return None if str(socket) in self.answering else f"{socket}: no such file"

    async def serve(self, *argv: str, socket: Path, timeout: float = 20.0) -> str | None:
        self.ran.append(argv)
        return self.serve_trouble

    async def make_rootfs(self, path: Path) -> str | None:
        self.made.append(path)
        return self.rootfs_trouble

    async def remove(self, path: Path) -> None:
        self.made.remove(path)

    async def write(self, path: Path, text: str) -> None:
        self.files[str(path)] = text


def good_machine() -> FakeProbe:
    """Debian with systemd, cgroup v2 and all packages."""
    probe = FakeProbe()
    probe.files = {
        "/etc/subuid": f"{USER}:200000:65536\n",
        "/etc/subgid": f"{USER}:200000:65536\n",
        "/proc/self/mountinfo": MOUNTS,
        SECCOMP: json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}),
        "/proc/sys/fs/inotify/max_user_instances": "128\n",
        "/proc/sys/fs/inotify/max_user_watches": "65536\n",
        "/proc/sys/user/max_user_namespaces": "63000\n",
        "/proc/sys/kernel/random/boot_id": "boot-1\n",
    }
    probe.paths = {
        "/": OURS,
        "/dev/net/tun": DEVICE,
        "/run/systemd/system": replace(OURS, uid=0),
        "/run/user/999": OURS,
        "/usr/bin/newgidmap": HELPER,
        "/usr/bin/newuidmap": HELPER,
        "/usr/libexec/podman/catatonit": HELPER,
        f"/var/lib/systemd/linger/{USER}": DEVICE,
        "/var/lib/agentsmith": OURS,
        "/var/lib/agentsmith/storage": OURS,
        str(STATE): OURS,
    }
    probe.commands = {"podman", "crun", "runc", "newuidmap", "newgidmap", "pasta", "slirp4netns", "unshare"}
    probe.outputs = {
        ("unshare", "--user"): Output(0),
        ("podman", "unshare"): Output(0, "         0        999          1\n         1     200000      65536\n"),
        ("podman", "info"): Output(0, json.dumps(good_info())),
        ("podman", "--version"): Output(0, "podman version 5.4.2\n"),
        ("podman", "run"): Output(0, "tini version 0.2.1_catatonit\n"),
        ("podman", "rm"): Output(0),
        ("podman", "images"): Output(0, f"{IMAGE.tag}\nlocalhost/podmentor/claude-code:current\n"),
        ("podman", "volume", "ls"): Output(0),
    }
    return probe


def subject(
    probe: FakeProbe,
    *,
    info: dict[str, Any] | None = None,
    config: Config | None = None,
    images: tuple[WantedImage, ...] = (IMAGE,),
    paths: Paths | None = None,
) -> Subject:
    """What the checks get; ``info`` defaults to the good one."""
    return Subject(
        config=config or Config(),
        paths=paths or Paths(state_dir=STATE, runtime_dir=RUNTIME),
        images=images,
        probe=probe,
        info=Info(info if info is not None else good_info()),
    )
