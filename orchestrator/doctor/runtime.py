"""Which OCI runtime really runs a container here, and with which seccomp profile: found by running containers.

They have the hardening that runs have.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.config.models import Config, Paths
from orchestrator.contract.seccomp import narrowed_text, source_of
from orchestrator.doctor.model import Finding, Subject, failed, ok, unknown, warning
from orchestrator.doctor.probe import Output, Probe, SystemProbe

KNOWN = ("crun", "runc")
TRY_SECONDS = 40.0
"""The first container of a slow machine takes several seconds."""
INIT = "/run/podman-init"
"""Where ``--init`` puts its program in the container.  It is static: a root of empty directories is enough for it."""
SECCOMP = "seccomp"
SECCOMP_OPEN = (
    "agents may make sockets that no namespace confines (AF_VSOCK, AF_ALG and the like), namespaces in which they are"
    " root, and key rings until no other container can start"
)
_REINSTALL = "sudo apt-get install -y --reinstall golang-github-containers-common"


async def try_runtime(probe: Probe, runtime: str, rootfs: Path, *, seccomp: Path | None = None) -> Output:
    """Run one container with ``runtime``: no image is needed.  Good when it ran and ended by itself.

    ``seccomp``: a profile other than Podman's own.
    """
    container = f"podmentor-doctor-{secrets.token_hex(4)}"
    output = await probe.run(
        *("podman", "--runtime", runtime, "run", "--rm", "--name", container),
        *("--network=none", "--userns=keep-id:uid=1000,gid=1000", "--cap-drop=all", "--security-opt=no-new-privileges"),
        *(() if seccomp is None else (f"--security-opt=seccomp={seccomp}",)),
        *("--read-only", "--init", "--log-driver=none", "--rootfs", str(rootfs), INIT, "--version"),
        timeout=TRY_SECONDS,
    )
    if not output.good:
        # what a failed start leaves behind would keep a lock
        await probe.run("podman", "rm", "--force", container)
    return output


async def _candidates(probe: Probe, config: Config, default: str) -> list[str]:
    """What is worth a try, the best first: the configured one alone, else Podman's own default and the known ones."""
    if config.podman.runtime:
        return [config.podman.runtime]
    named = dict.fromkeys(name for name in (default, *KNOWN) if name)
    return [name for name in named if await probe.which(name) is not None]


async def _try_all(probe: Probe, paths: Paths, names: list[str]) -> tuple[str | None, dict[str, str]]:
    """The first of ``names`` that works, and what the ones before it said."""
    refused: dict[str, str] = {}
    async with empty_rootfs(probe, paths) as (rootfs, trouble):
        if trouble:
            return None, dict.fromkeys(names, trouble)
        for name in names:
            output = await try_runtime(probe, name, rootfs)
            if output.good:
                return name, refused
            refused[name] = output.complaint
    return None, refused


@asynccontextmanager
async def empty_rootfs(probe: Probe, paths: Paths) -> AsyncIterator[tuple[Path, str | None]]:
    """A root file system to try containers on, as near to the state directory as there is a place; and what went
    wrong."""
    found = paths.state_dir
    while await probe.facts(found) is None and found != found.parent:
        found = found.parent
    rootfs = found / f".doctor-rootfs-{secrets.token_hex(4)}"
    try:
        yield rootfs, await probe.make_rootfs(rootfs)
    finally:
        await probe.remove(rootfs)


def _cache_file(paths: Paths) -> Path:
    return paths.state_dir / "oci-runtime.json"


async def _cache_key(probe: Probe, config: Config) -> str | None:
    """Changes with Podman, with the boot (a new kernel, other cgroups) and with the setting.  None: do not remember."""
    version = await probe.run("podman", "--version", timeout=10)
    boot = await probe.read(Path("/proc/sys/kernel/random/boot_id"))
    if not version.good or boot is None:
        return None
    return "|".join((version.stdout.strip(), boot.strip(), config.podman.runtime or ""))


async def _remember(probe: Probe, config: Config, paths: Paths, runtime: str) -> None:
    key = await _cache_key(probe, config)
    if key is not None:
        await probe.write(_cache_file(paths), json.dumps({"key": key, "runtime": runtime}) + "\n")


async def _remembered(probe: Probe, config: Config, paths: Paths) -> str | None:
    text = await probe.read(_cache_file(paths))
    if text is None:
        return None
    try:
        memory = json.loads(text)
    except ValueError:
        return None
    runtime = memory.get("runtime") if isinstance(memory, Mapping) else None
    if not isinstance(runtime, str):
        return None
    key = await _cache_key(probe, config)
    if key is None or memory.get("key") != key:
        return None
    return runtime if await probe.which(runtime) is not None else None


async def working_runtime(*, config: Config, paths: Paths, probe: Probe | None = None) -> str | None:
    """The OCI runtime to give to ``podman --runtime``: the configured one if it works, else the first that does.

    None when none works: `podmentor doctor` says why.  Found by running a container (about 0.5 s), then remembered in
    ``<state>/oci-runtime.json`` until the next boot or another Podman.
    """
    probe = probe or SystemProbe()
    if (known := await _remembered(probe, config, paths)) is not None:
        return known
    works, _ = await _try_all(probe, paths, await _candidates(probe, config, ""))
    if works is not None:
        await _remember(probe, config, paths, works)
    return works


async def oci_runtime(subject: Subject) -> Finding:
    """Does one of the installed runtimes run a container?  Always tried anew."""
    name, probe, config = "OCI runtime", subject.probe, subject.config
    default = subject.info.text("host", "ociRuntime", "name") if subject.info else ""
    candidates = await _candidates(probe, config, default)
    if not candidates:
        return failed(name, "neither crun nor runc is installed", "sudo apt-get install -y runc")
    works, refused = await _try_all(probe, subject.paths, candidates)
    said = "; ".join(f"{runtime} fails: {why}" for runtime, why in refused.items())
    if works is not None:
        await _remember(probe, config, subject.paths, works)
        return ok(name, f"{works} runs a container" + (f" ({said})" if said else ""))
    if config.podman.runtime:
        return failed(name, f"podman.runtime is set, but {said}", "sed -i '/^ *runtime: /d' podmentor.yaml")
    others = [runtime for runtime in ("runc", "crun") if runtime not in candidates]
    fix = (
        f"sudo apt-get install -y {others[0]}" if others else f"podman --log-level=debug --runtime {candidates[0]} info"
    )
    return failed(name, said, fix)


async def seccomp(subject: Subject) -> Finding:
    """podmentor's own profile is made of Podman's; where that cannot be, Podman's holds, or none at all."""
    if subject.info is None:
        return unknown(SECCOMP)
    security, probe = subject.info.get("host", "security"), subject.probe
    if isinstance(security, dict) and security.get("seccompEnabled") is False:
        detail = f"not in force: this Podman or this kernel has none; {SECCOMP_OPEN}"
        return warning(SECCOMP, detail, "grep CONFIG_SECCOMP_FILTER /boot/config-$(uname -r)   # must say =y")
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
        return warning(SECCOMP, "cannot be tried without a working OCI runtime (see OCI runtime)", None)
    async with empty_rootfs(probe, subject.paths) as (rootfs, trouble):
        if trouble:
            return warning(SECCOMP, f"cannot be tried: {trouble}", None)
        await probe.write(profile := rootfs / "seccomp.json", ours)
        output = await try_runtime(probe, runtime, rootfs, seccomp=profile)
    if not output.good:
        detail = f"{runtime} starts no container with podmentor's profile (made of {source}): {output.complaint}"
        return failed(SECCOMP, detail, _REINSTALL)
    return ok(SECCOMP, f"podmentor's profile is in force: {source}, without what no container confines")


def _podmans_own(why: str) -> Finding:
    return warning(
        SECCOMP, f"Podman's own profile is in force, not podmentor's narrower one: {why}; {SECCOMP_OPEN}", _REINSTALL
    )
