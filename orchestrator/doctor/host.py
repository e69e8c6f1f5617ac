"""Checks of the machine and of the user: what the kernel and the system's set-up must allow."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.paths import LONGEST_SOCKET
from orchestrator.doctor.model import Finding, Subject, failed, ok, warning
from orchestrator.doctor.probe import Probe
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes

SUBIDS_NEEDED = 65536
INOTIFY_INSTANCES, INOTIFY_INSTANCES_PER_RUN = 16, 8
"""Inotify instances that a service needs, and more for each run at a time: ours, conmon's, and those of the agent's
tools, since all count for the one user that containers are run by."""
INOTIFY_WATCHES = 8192
"""Files and directories that may be watched: the kernel's own choice on a small machine."""


async def user_namespaces(subject: Subject) -> Finding:
    """May this user make user namespaces at all?"""
    name, probe = "user namespaces", subject.probe
    if probe.uid == 0:
        return failed(
            name,
            "this is root: containers would not be rootless",
            "scripts/podmentor doctor   # runs as the service user",
        )
    for sysctl, off in (("user.max_user_namespaces", "0"), ("kernel.unprivileged_userns_clone", "0")):
        value = await probe.read(Path("/proc/sys") / sysctl.replace(".", "/"))
        if value is not None and value.strip() == off:
            good = "1" if sysctl.endswith("clone") else "65536"
            return failed(
                name,
                f"switched off: {sysctl} is {off}",
                f"echo {sysctl}={good} | sudo tee /etc/sysctl.d/99-podmentor.conf && sudo sysctl --system",
            )
    made = await probe.run("unshare", "--user", "--map-root-user", "true", timeout=10)
    if made.good:
        return ok(name, "can be made")
    restricted = await probe.read(Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"))
    if restricted is not None and restricted.strip() == "1":
        # Ubuntu lets programs with a profile of their own through, Podman among them
        return warning(
            name,
            "AppArmor allows them only to programs with a profile (Podman has one)",
            "echo kernel.apparmor_restrict_unprivileged_userns=0 | sudo tee /etc/sysctl.d/99-podmentor.conf"
            " && sudo sysctl --system",
        )
    return failed(
        name,
        f"cannot be made: {made.complaint}",
        "sudo sysctl -w user.max_user_namespaces=65536   # inside a container: allow unshare in its seccomp profile",
    )


def count_subids(text: str, user: str, uid: int) -> int:
    """Ids that /etc/subuid or /etc/subgid gives to a user, who may stand there by name or by number."""
    total = 0
    for line in text.splitlines():
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[0] in {user, str(uid)} and fields[2].isdigit():
            total += int(fields[2])
    return total


def free_block(*texts: str) -> int:
    """Start of the first block of SUBIDS_NEEDED ids, from 100000 on, that none of the files' ranges overlaps."""
    ranges = []
    for line in "\n".join(texts).splitlines():
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
            ranges.append((int(fields[1]), int(fields[2])))
    start = 100000
    for first, count in sorted(ranges):
        if first < start + SUBIDS_NEEDED and first + count > start:
            start += -(-(first + count - start) // SUBIDS_NEEDED) * SUBIDS_NEEDED
    return start


def count_mapping(text: str) -> int:
    """Ids that a user namespace has, from its /proc/self/uid_map."""
    rows = [line.split() for line in text.splitlines()]
    return sum(int(row[2]) for row in rows if len(row) == 3 and row[2].isdigit())


async def _granted(probe: Probe, file: str, *getsubids: str) -> int:
    listed = count_subids(await probe.read(Path(file)) or "", probe.user, probe.uid)
    if listed == 0:
        # the ids may come from a directory service: `0: user 100000 65536`
        answer = await probe.run("getsubids", *getsubids, probe.user, timeout=10)
        if answer.good:
            rows = [line.split() for line in answer.stdout.splitlines()]
            listed = sum(int(row[3]) for row in rows if len(row) == 4 and row[3].isdigit())
    return listed


async def subordinate_ids(subject: Subject) -> Finding:
    """65536 subordinate user and group ids, the two helpers that map them, and a namespace that really has them."""
    name, probe = "subordinate ids", subject.probe
    for helper in ("newuidmap", "newgidmap"):
        path = await probe.which(helper)
        if path is None:
            return failed(name, f"{helper} is not installed", "sudo apt-get install -y uidmap")
        facts = await probe.facts(Path(path))
        if facts is not None and not facts.privileged:
            return failed(name, f"{path} may not map ids: it has lost its privilege", f"sudo chmod u+s {path}")
    short = {
        option: found
        for option, found in (
            ("--add-subuids", await _granted(probe, "/etc/subuid")),
            ("--add-subgids", await _granted(probe, "/etc/subgid", "-g")),
        )
        if found < SUBIDS_NEEDED
    }
    if short:
        have = ", ".join(f"{found} in {option[-7:-1]}" for option, found in short.items())
        start = free_block(*[await probe.read(Path(file)) or "" for file in ("/etc/subuid", "/etc/subgid")])
        ranges = " ".join(f"{option} {start}-{start + SUBIDS_NEEDED - 1}" for option in short)
        return failed(
            name,
            f"{probe.user} has too few, {SUBIDS_NEEDED} are needed: {have}",
            f"sudo usermod {ranges} {probe.user} && podman system migrate",
        )
    inside = await probe.run("podman", "unshare", "cat", "/proc/self/uid_map", timeout=30)
    if not inside.good:
        return failed(name, f"given, but not usable: {inside.complaint}", "podman system migrate")
    mapped = count_mapping(inside.stdout)
    if mapped < SUBIDS_NEEDED:
        return failed(name, f"given, but Podman still uses an old mapping of {mapped}", "podman system migrate")
    return ok(name, f"{mapped - 1} for {probe.user}")


async def runtime_directory(subject: Subject) -> Finding:
    """A place for sockets: ours alone, and not in /tmp, where other users could have been first."""
    name, probe = "runtime directory", subject.probe
    wanted = subject.paths.runtime_dir
    fix = f"sudo install -d -m 0700 -o {probe.user} {wanted.parent}"
    for path in (wanted, wanted.parent):
        facts = await probe.facts(path)
        if facts is None:
            continue
        if not facts.is_dir:
            return failed(name, f"{path} is no directory", f"mv {path} {path}.old")
        if facts.uid != probe.uid or not facts.writable:
            return failed(name, f"{path} belongs to another user or cannot be written", fix)
        if facts.mode & 0o077:
            return failed(name, f"{path} is open to other users (mode {facts.mode:04o})", f"chmod 0700 {path}")
        run_root = subject.info.text("store", "runRoot") if subject.info else ""
        if run_root.startswith("/tmp/"):  # noqa: S108 - it is looked for, not used
            return warning(
                name,
                f"{path} is good, but Podman keeps its own state in {run_root}: it was started without XDG_RUNTIME_DIR",
                f"export XDG_RUNTIME_DIR=/run/user/{probe.uid}",
            )
        return ok(name, str(wanted))
    return failed(name, f"{wanted.parent} does not exist", fix)


async def socket_paths(subject: Subject) -> Finding:
    """The longest socket path of a run must fit into the kernel's field for it."""
    name = "socket paths"
    longest = socket_path_bytes(subject.paths.runtime_dir / LONGEST_SOCKET)
    if longest > SOCKET_PATH_MAX:
        return failed(
            name,
            f"up to {longest} bytes below {subject.paths.runtime_dir}, {SOCKET_PATH_MAX} are possible",
            f"printf 'storage:\\n  runtime_dir: /run/user/{subject.probe.uid}/podmentor\\n' >> podmentor.yaml",
        )
    return ok(name, f"up to {longest} of {SOCKET_PATH_MAX} bytes")


async def init_program(subject: Subject) -> Finding:
    """catatonit is the first process of every container: it reaps what the agent leaves."""
    name, probe = "init program", subject.probe
    for path in ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/local/libexec/podman/catatonit"):
        if await probe.facts(Path(path)) is not None:
            return ok(name, path)
    if found := await probe.which("catatonit"):
        return ok(name, found)
    return failed(name, "catatonit is not installed", "sudo apt-get install -y catatonit")


async def selinux(subject: Subject) -> Finding:
    """Where SELinux confines containers, an unlabelled repo is closed to the agent."""
    name, probe = "SELinux", subject.probe
    enforcing = await probe.read(Path("/sys/fs/selinux/enforce"))
    if enforcing is None:
        return ok(name, "not in use")
    if enforcing.strip() != "1":
        return ok(name, "permissive")
    if subject.info is not None and subject.info.get("host", "security", "selinuxEnabled") is False:
        return ok(name, "enforcing, but not for this user's containers")
    return warning(
        name,
        "enforcing: the agent may be refused its own workspace, whose files have no container label",
        "mkdir -p ~/.config/containers/containers.conf.d && printf '[containers]\\nlabel = false\\n'"
        " > ~/.config/containers/containers.conf.d/podmentor.conf",
    )


async def linger(subject: Subject) -> Finding:
    """Under systemd, a user's processes end at log-out unless the user lingers."""
    name, probe = "linger", subject.probe
    if await probe.facts(Path("/run/systemd/system")) is None:
        return ok(name, "not needed: no systemd here")
    if await probe.facts(Path("/var/lib/systemd/linger") / probe.user) is not None:
        return ok(name, f"on for {probe.user}")
    return warning(
        name,
        f"off: containers end when {probe.user} logs out",
        f"sudo loginctl enable-linger {probe.user}",
    )


async def inotify(subject: Subject) -> Finding:
    """The kernel's limits, per user, on watching files: agents' tools use them up, and the service shares them."""
    name, probe = "inotify limits", subject.probe
    runs = subject.config.runs.max_concurrent
    needed = {
        "fs.inotify.max_user_instances": INOTIFY_INSTANCES + INOTIFY_INSTANCES_PER_RUN * runs,
        "fs.inotify.max_user_watches": INOTIFY_WATCHES,
    }
    found: dict[str, int] = {}
    for sysctl in needed:
        text = (await probe.read(Path("/proc/sys") / sysctl.replace(".", "/")) or "").strip()
        if text.isdigit():
            found[sysctl] = int(text)
    if not found:
        return ok(name, "not known: this kernel does not show them")
    low = {sysctl: value for sysctl, value in found.items() if value < needed[sysctl]}
    if not low:
        return ok(name, ", ".join(f"{sysctl.rpartition('_')[2]} {value}" for sysctl, value in found.items()))
    detail = ", ".join(f"{sysctl} is {value}, {needed[sysctl]} are wanted" for sysctl, value in low.items())
    lines = "".join(f"{sysctl}={4 * needed[sysctl]}\\n" for sysctl in low)
    return warning(
        name,
        f"low for {runs} runs at a time ({detail}): without them logs are read late and agents' tools miss changes",
        f"printf '{lines}' | sudo tee /etc/sysctl.d/99-podmentor-inotify.conf && sudo sysctl --system",
    )
