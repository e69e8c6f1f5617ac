"""Which seccomp profile containers get, and whether they start with it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.contract.seccomp import narrowed_text, source_of
from orchestrator.doctor.model import Finding, Subject, failed, ok, unknown, warning
from orchestrator.doctor.runtime import empty_rootfs, try_runtime, working_runtime

NAME = "seccomp"
OPEN = (
    "agents may make sockets that no namespace confines (AF_VSOCK, AF_ALG and the like), namespaces in which they are"
    " root, and key rings until no other container can start"
)


async def seccomp(subject: Subject) -> Finding:
    """podmentor's own profile is made of Podman's; where that cannot be, Podman's holds, or none at all."""
    if subject.info is None:
        return unknown(NAME)
    security, probe = subject.info.get("host", "security"), subject.probe
    if isinstance(security, dict) and security.get("seccompEnabled") is False:
        detail = f"not in force: this Podman or this kernel has none; {OPEN}"
        return warning(NAME, detail, "grep CONFIG_SECCOMP_FILTER /boot/config-$(uname -r)   # must say =y")
    source = source_of(subject.info.get("host", "security", "seccompProfilePath"))
    text = await probe.read(Path(source))
    if text is None:
        return _podmans_own(f"{source} cannot be read")
    try:
        ours = narrowed_text(text)
    except ValueError as error:
        return _podmans_own(f"{source} cannot be narrowed: {error}")
    runtime = await working_runtime(config=subject.config, paths=subject.paths, probe=probe)
    if runtime is None:
        return warning(NAME, "cannot be tried without a working OCI runtime (see OCI runtime)", None)
    async with empty_rootfs(probe, subject.paths) as (rootfs, trouble):
        if trouble:
            return warning(NAME, f"cannot be tried: {trouble}", None)
        await probe.write(profile := rootfs / "seccomp.json", ours)
        output = await try_runtime(probe, runtime, rootfs, seccomp=profile)
    if not output.good:
        detail = f"{runtime} starts no container with podmentor's profile (made of {source}): {output.complaint}"
        return failed(NAME, detail, _REINSTALL)
    return ok(NAME, f"podmentor's profile is in force: {source}, without what no container confines")


_REINSTALL = "sudo apt-get install -y --reinstall golang-github-containers-common"


def _podmans_own(why: str) -> Finding:
    return warning(NAME, f"Podman's own profile is in force, not podmentor's narrower one: {why}; {OPEN}", _REINSTALL)
