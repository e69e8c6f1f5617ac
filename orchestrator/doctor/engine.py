"""Checks of Podman itself: its version, its storage, its service, and what it can enforce."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from orchestrator.doctor.model import Finding, Info, Subject, failed, ok, unknown, warning
from orchestrator.doctor.probe import Probe

OLDEST = (4, 3)
"""The first version that maps a chosen uid (``keep-id:uid=``)."""
DEFAULT_LOCKS = 2048
LOCKS_LOW = 64
LOCKS_NONE = 4
PASTA_SINCE = (5, 0)


async def podman_info(probe: Probe) -> tuple[Info | None, str]:
    """Podman's report of itself, or None and the reason."""
    output = await probe.run("podman", "info", "--format", "json", timeout=30)
    if not output.good:
        return None, output.complaint
    try:
        raw = json.loads(output.stdout)
    except ValueError:
        return None, "`podman info` printed something that is not JSON"
    return (Info(raw), "") if isinstance(raw, dict) else (None, "`podman info` printed no JSON object")


def version_of(text: str) -> tuple[int, int] | None:
    """Major and minor number at the front of a version."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


async def podman(subject: Subject) -> Finding:
    """Is Podman there, does it report, is it new enough?"""
    if subject.info is None:
        if await subject.probe.which("podman") is None:
            return failed("podman", "not installed", "sudo apt-get install -y podman")
        fix = "podman info"
        if "driver" in subject.info_error and "database" in subject.info_error:
            # another storage driver was chosen after the first use
            fix = "podman system reset   # removes all containers and images of this user"
        return failed("podman", f"`podman info` fails: {subject.info_error}", fix)
    version = version_of(subject.info.version)
    if version is None or version < OLDEST:
        need = ".".join(map(str, OLDEST))
        return failed(
            "podman",
            f"version {subject.info.version or 'unknown'}, {need} or later is needed",
            "sudo apt-get update && sudo apt-get install -y podman   # Debian 12 or later has it",
        )
    return ok("podman", f"version {subject.info.version}")


async def storage_driver(subject: Subject) -> Finding:
    """Overlay shares layers; vfs copies each one whole, for each container."""
    name = "storage driver"
    if subject.info is None:
        return unknown(name)
    driver = subject.info.text("store", "graphDriverName")
    if driver == "overlay":
        options = subject.info.get("store", "graphOptions")
        helper = any("mount_program" in key for key in options) if isinstance(options, dict) else False
        return ok(name, "overlay, by fuse-overlayfs" if helper else "overlay, by the kernel")
    config = subject.info.text("store", "configFile") or "~/.config/containers/storage.conf"
    fix = (
        f"podman system reset --force && mkdir -p {Path(config).parent}"
        f" && printf '[storage]\\ndriver = \"overlay\"\\n' > {config}   # removes all images of this user"
    )
    if driver in {"btrfs", "zfs"}:
        return ok(name, driver)
    return warning(name, f"{driver or 'unknown'}: every container copies its whole image", fix)


async def memory_enforcement(subject: Subject) -> Finding:
    """Which of the two holds an agent to its memory limit: the kernel's cgroup, or our own watchdog."""
    name = "memory limits"
    if subject.info is None:
        return unknown(name)
    version, controllers = subject.info.text("host", "cgroupVersion"), subject.info.controllers
    listed = " ".join(controllers) or "none"
    if version == "v2" and "memory" in controllers:
        return ok(name, f"enforced by cgroup v2 (controllers: {listed})")
    if version == "v2":
        detail = f"enforced by podmentor's watchdog: cgroup v2, but memory is not delegated (controllers: {listed})"
        drop_in = "/etc/systemd/system/user@.service.d"
        fix = (
            f"sudo mkdir -p {drop_in} && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n'"
            f" | sudo tee {drop_in}/delegate.conf && sudo systemctl daemon-reload   # then log in again"
        )
    else:
        detail = (
            f"enforced by podmentor's watchdog: cgroup {version or 'version unknown'} gives rootless users no limits"
        )
        fix = (
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&systemd.unified_cgroup_hierarchy=1 /' /etc/default/grub"
            " && sudo update-grub   # then reboot; in a virtual machine without GRUB, on its kernel's command line"
        )
    if subject.config.podman.require_cgroup_limits:
        return failed(name, f"podman.require_cgroup_limits is set, but limits would be {detail}", fix)
    return warning(name, detail, fix)


async def cpu_limits(subject: Subject) -> Finding:
    """A limit on processors is kept by the cgroup or not at all: nothing of ours can stand in for it."""
    name = "cpu limits"
    if subject.info is None:
        return unknown(name)
    agents = subject.config.external_agent
    asked = [
        *(["default_limits"] if agents.default_limits.cpus is not None else []),
        *(
            f"backends.{backend}.limits"
            for backend, set_up in agents.backends.items()
            if set_up.limits.cpus is not None
        ),
    ]
    if subject.info.text("host", "cgroupVersion") == "v2" and "cpu" in subject.info.controllers:
        return ok(name, "kept by cgroup v2")
    if not asked:
        return ok(name, "none is configured (it could not be kept here: the cpu controller is not delegated)")
    detail = f"cpus in {', '.join(asked)} has no effect: the cpu controller is not delegated to this user"
    fix = (
        "sudo mkdir -p /etc/systemd/system/user@.service.d"
        " && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n'"
        " | sudo tee /etc/systemd/system/user@.service.d/delegate.conf && sudo systemctl daemon-reload"
        "   # cgroup v2 only; then log in again"
    )
    report = failed if subject.config.podman.require_cgroup_limits else warning
    return report(name, detail, fix)


async def network_helper(subject: Subject) -> Finding:
    """Tier 0 needs a way out of the container; tier 1 has none on purpose."""
    name, probe = "network helper", subject.probe
    if subject.info is None:
        return unknown(name)
    needed = (
        subject.config.external_agent.default_sandbox_tier == 0 and subject.config.podman.tier0_network == "default"
    )
    bad = failed if needed else warning
    command = subject.info.text("host", "rootlessNetworkCmd")
    if command not in {"pasta", "slirp4netns"}:
        command = "pasta" if (version_of(subject.info.version) or OLDEST) >= PASTA_SINCE else "slirp4netns"
    path = subject.info.text("host", command, "executable") or await probe.which(command)
    if not path:
        package = "passt" if command == "pasta" else command
        return bad(name, f"{command} is not installed: tier 0 has no network", f"sudo apt-get install -y {package}")
    tun = await probe.facts(Path("/dev/net/tun"))
    if tun is None:
        return bad(
            name,
            f"/dev/net/tun is missing: {command} cannot make an interface",
            "sudo modprobe tun || { sudo mkdir -p /dev/net && sudo mknod -m 0666 /dev/net/tun c 10 200; }",
        )
    if not (tun.readable and tun.writable):
        return bad(name, "/dev/net/tun is closed to this user", "sudo chmod 0666 /dev/net/tun")
    return ok(name, f"{command} ({path})")


async def podman_service(subject: Subject) -> Finding:
    """A socket that answers: the configured one, the user's own, or one that we start."""
    name, probe = "podman service", subject.probe
    if (chosen := subject.config.podman.socket) is not None:
        trouble = await probe.ping(chosen)
        if trouble is None:
            return ok(name, f"answers at {chosen}")
        return failed(
            name,
            f"podman.socket is set, but {trouble}",
            f"podman system service --time=0 unix://{chosen}   # or leave podman.socket out",
        )
    remote = subject.info.text("host", "remoteSocket", "path") if subject.info else ""
    own = Path(remote.removeprefix("unix://") or f"/run/user/{probe.uid}/podman/podman.sock")
    if await probe.facts(own) is not None and await probe.ping(own) is None:
        return ok(name, f"answers at {own}")
    parent = subject.paths.runtime_dir
    if await probe.facts(parent) is None:
        parent = parent.parent
    scratch = parent / f"doctor-{secrets.token_hex(4)}.sock"
    trouble = await probe.serve("podman", "system", "service", "--time=30", f"unix://{scratch}", socket=scratch)
    if trouble is None:
        return ok(name, "none is running; one can be started when it is needed")
    return failed(name, f"cannot be started: {trouble}", "podman --log-level=debug system service --time=5")


async def locks(subject: Subject) -> Finding:
    """Every container and volume takes one of Podman's locks; without a free one nothing can be created."""
    name = "free locks"
    if subject.info is None:
        return unknown(name)
    reported = subject.info.get("host", "freeLocks")
    if isinstance(reported, int):
        free, how = reported, ""
    else:
        used = subject.info.get("store", "containerStore", "number")
        volumes = await subject.probe.run("podman", "volume", "ls", "--quiet")
        taken = (used if isinstance(used, int) else 0) + len(volumes.stdout.split())
        free, how = DEFAULT_LOCKS - taken, " (counted: this version does not report them)"
    if free >= max(LOCKS_LOW, 2 * subject.config.runs.max_concurrent):
        return ok(name, f"{free}{how}")
    fix = "podman container prune --force && podman volume prune --force"
    return (failed if free < LOCKS_NONE else warning)(name, f"only {free}{how}", fix)


async def images(subject: Subject) -> list[Finding]:
    """Is each wanted image there, and made from today's recipe?"""
    if not subject.images:
        return []
    listing = await subject.probe.run("podman", "images", "--format", "{{.Repository}}:{{.Tag}}", timeout=30)
    have = set(listing.stdout.split())
    findings = []
    for image in subject.images:
        name, fix = f"image {image.backend}", f"podmentor images build {image.backend}"
        repository = image.tag.rpartition(":")[0]
        older = sorted(tag for tag in have if tag.startswith(f"{repository}:") and not tag.endswith(":current"))
        if not listing.good:
            findings.append(warning(name, f"cannot be checked: {listing.complaint}", "podman images"))
        elif image.tag in have:
            findings.append(ok(name, image.tag))
        elif older:
            findings.append(failed(name, f"out of date: {older[-1]} is there, {image.tag} is wanted", fix))
        else:
            findings.append(failed(name, f"not built: {image.tag}", fix))
    return findings
