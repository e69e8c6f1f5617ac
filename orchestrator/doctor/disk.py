"""Checks of the places on disk: room, ownership, and file systems that can carry an overlay."""

from __future__ import annotations

from pathlib import Path

from orchestrator.doctor.model import Finding, Subject, failed, ok, warning
from orchestrator.doctor.probe import PathFacts, Probe
from orchestrator.system.mounts import mount_of, parse_mounts

GIB = 1024**3
LOW_BYTES, TOO_LOW_BYTES = 5 * GIB, 1 * GIB
LOW_INODES = 20_000
NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "glusterfs",
}


async def nearest(probe: Probe, path: Path) -> tuple[Path, PathFacts] | None:
    """``path``, or the nearest directory above it that exists."""
    for candidate in (path, *path.parents):
        facts = await probe.facts(candidate)
        if facts is not None:
            return candidate, facts
    return None


async def disk_space(subject: Subject) -> Finding:
    """Room for the state directory and for Podman's images, in bytes and in inodes."""
    name, probe = "disk space", subject.probe
    places = {"state": subject.paths.state_dir}
    if subject.info is not None and (root := subject.info.text("store", "graphRoot")):
        places["images"] = Path(root)
    reported, worst = [], ok(name, "")
    for what, path in places.items():
        found = await nearest(probe, path)
        if found is None:
            continue
        facts = found[1]
        reported.append(f"{facts.free_bytes / GIB:.1f} GiB free for {what}")
        fix = "podmentor images prune" if what == "images" else f"du -xh --max-depth=2 {found[0]} | sort -h | tail"
        if facts.free_bytes < TOO_LOW_BYTES:
            worst = failed(name, "", fix)
        elif worst.status == "ok" and (
            facts.free_bytes < LOW_BYTES or (facts.free_inodes is not None and facts.free_inodes < LOW_INODES)
        ):
            if facts.free_inodes is not None and facts.free_inodes < LOW_INODES:
                reported[-1] += f", only {facts.free_inodes} inodes"
            worst = warning(name, "", fix)
    return Finding(name, worst.status, "; ".join(reported) or "not known", worst.fix)


async def state_directory(subject: Subject) -> Finding:
    """Ours, closed to others, writable, and on a file system that can hold the upper side of an overlay."""
    name, probe, state = "state directory", subject.probe, subject.paths.state_dir
    found = await nearest(probe, state)
    if found is None:
        return failed(name, f"nothing of {state} can be seen", f"mkdir -p -m 0700 {state}")
    path, facts = found
    if path != state:
        if not (facts.is_dir and facts.writable):
            fix = f"sudo install -d -m 0700 -o {probe.user} {state}"
            return failed(name, f"{state} does not exist and cannot be made in {path}", fix)
    elif not facts.is_dir:
        return failed(name, f"{state} is no directory", f"mv {state} {state}.old")
    elif facts.uid != probe.uid or not facts.writable:
        fix = f"sudo chown -R {probe.user} {state}"
        return failed(name, f"{state} belongs to another user or cannot be written", fix)
    elif facts.mode & 0o077:
        return failed(name, f"{state} is open to other users (mode {facts.mode:04o})", f"chmod 0700 {state}")
    return await _file_system(subject, state, facts)


async def _file_system(subject: Subject, state: Path, facts: PathFacts) -> Finding:
    name, probe = "state directory", subject.probe
    elsewhere = (
        "printf 'storage:\\n  state_dir: /var/lib/podmentor/state\\n' >> podmentor.yaml   # a place on a local disk"
    )
    mount = mount_of(state, parse_mounts(await probe.read(Path("/proc/self/mountinfo")) or ""))
    kind = "unknown" if mount is None else mount.kind
    if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
        return failed(name, f"{state} is on {kind}, which cannot carry an overlay or SQLite's locks", elsewhere)
    if kind == "overlay":
        return failed(name, f"{state} is itself on an overlay, and one cannot be put upon another", elsewhere)
    subagents = await probe.facts(state / "subagents")
    if subagents is not None and subagents.device != facts.device:
        return warning(
            name,
            f"{state}/subagents is another file system than {state}: changes cannot be moved, only copied",
            f"findmnt -T {state}/subagents",
        )
    if kind in {"tmpfs", "ramfs"}:
        return warning(name, f"{state} is on {kind}: it is lost at the next boot", elsewhere)
    return ok(name, f"{state} ({kind})")
