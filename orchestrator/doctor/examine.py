"""All checks at once: none waits for another, none can hang, and a crash of one is a finding of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from orchestrator.config.models import Config, Paths
from orchestrator.doctor import disk, engine, host, runtime
from orchestrator.doctor.model import Finding, Subject, WantedImage, failed
from orchestrator.doctor.probe import Probe, SystemProbe

log = logging.getLogger(__name__)

Check = Callable[[Subject], Awaitable[Finding | list[Finding]]]

CHECKS: dict[str, Check] = {
    "user namespaces": host.user_namespaces,
    "subordinate ids": host.subordinate_ids,
    "runtime directory": host.runtime_directory,
    "socket paths": host.socket_paths,
    "podman": engine.podman,
    "OCI runtime": runtime.oci_runtime,
    "seccomp": runtime.seccomp,
    "init program": host.init_program,
    "storage driver": engine.storage_driver,
    "memory limits": engine.memory_enforcement,
    "cpu limits": engine.cpu_limits,
    "network helper": engine.network_helper,
    "podman service": engine.podman_service,
    "free locks": engine.locks,
    "state directory": disk.state_directory,
    "disk space": disk.disk_space,
    "SELinux": host.selinux,
    "linger": host.linger,
    "inotify limits": host.inotify,
    "images": engine.images,
}
"""In the order of the report."""

CHECK_SECONDS = 120.0
"""The most that one check may take; each of its own steps has a smaller bound."""


async def _one(name: str, check: Check, subject: Subject, timeout: float) -> list[Finding]:
    try:
        answer = await asyncio.wait_for(check(subject), timeout)
    except TimeoutError:
        return [failed(name, f"no result within {timeout:.0f} s", "podman ps   # does Podman itself hang?")]
    except Exception as error:
        log.exception("the check %s crashed", name)
        return [failed(name, f"the check itself crashed: {type(error).__name__}: {error}", None)]
    return answer if isinstance(answer, list) else [answer]


async def examine(
    *,
    config: Config,
    paths: Paths,
    images: Sequence[WantedImage],
    probe: Probe | None = None,
    timeout: float = CHECK_SECONDS,
) -> list[Finding]:
    """Check this machine for this user, in the order of the report.  Raises nothing for what it finds.

    ``timeout`` bounds each check, in seconds; they run side by side.
    """
    probe = probe or SystemProbe()
    info, info_error = await engine.podman_info(probe)
    subject = Subject(config=config, paths=paths, images=images, probe=probe, info=info, info_error=info_error)
    reports = await asyncio.gather(*(_one(name, check, subject, timeout) for name, check in CHECKS.items()))
    return [finding for report in reports for finding in report]
