"""The limits of one run, in the documented order: built in, then default_limits, then the backend's (C23).

A caller may narrow them; only an admin may widen them.  Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from orchestrator.config.models import Config
from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import InvalidRequestError, UnknownBackendError

MOST: Final[Mapping[str, float]] = {
    "memory_max_bytes": 2**53,
    "disk_max_bytes": 2**53,
    "output_max_bytes": 2**53,
    "pids_max": 2**22,
    "cpus": 4096,
    "wall_clock_seconds": 366 * 86400,
    "idle_seconds": 366 * 86400,
}
"""What not even an admin may go above: larger numbers are mistakes, and the kernel and Podman would not take them."""
_WHOLE: Final = frozenset({"memory_max_bytes", "disk_max_bytes", "output_max_bytes", "pids_max"})


def resolve_limits(config: Config, backend: str, request: LimitsRequest, *, privileged: bool = False) -> ResourceLimits:
    """What a run of ``backend`` may use.  ``privileged``: an admin asks.

    Raises UnknownBackendError when the configuration does not enable it, and InvalidRequestError (``details``: limit,
    asked, allowed) when ``request`` asks for more than is allowed, for nothing at all, or for what is no number.
    """
    settings = config.external_agent.backends.get(backend)
    if settings is None or not settings.enabled or not config.external_agent.enabled:
        raise UnknownBackendError(f"no backend {backend!r} is enabled", backend=backend)
    limits = ResourceLimits()
    for level in (config.external_agent.default_limits, settings.limits):
        limits = replace(limits, **level.model_dump(exclude_none=True))
    return adjusted(limits, request, privileged=privileged)


def adjusted(limits: ResourceLimits, request: LimitsRequest, *, privileged: bool = False) -> ResourceLimits:
    """``limits``, changed where ``request`` says so.  None in ``limits`` is unlimited: any value narrows it."""
    asked: dict[str, Any] = {}
    for item in fields(request):
        value = getattr(request, item.name)
        if value is None:
            continue
        configured = getattr(limits, item.name)
        allowed = MOST[item.name] if privileged or configured is None else configured
        if (wrong := _wrong(item.name, value)) is not None:
            raise InvalidRequestError(
                f"limit {item.name}: {wrong}",
                limit=item.name,
                asked=value if isinstance(value, int) and not isinstance(value, bool) else str(value),
                allowed=configured,
            )
        if value > allowed and not (configured is not None and value <= configured):
            raise InvalidRequestError(
                f"limit {item.name}: {value} was asked for, at most {allowed} is allowed",
                limit=item.name,
                asked=value,
                allowed=allowed,
            )
        asked[item.name] = value
    return replace(limits, **asked)


def _wrong(name: str, value: object) -> str | None:
    """Why this is no limit."""
    kinds = (int,) if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return "must be a whole number" if name in _WHOLE else "must be a number"
    if not math.isfinite(value) or value <= 0:
        return "must be more than 0" if math.isfinite(value) else "must be a finite number"
    return None


def enforcement_of(limits: ResourceLimits, by_runtime: Mapping[str, str]) -> dict[str, str]:
    """How each limit that is in force is kept: ``by_runtime`` says what the runtime does with those it is given."""
    kept = {
        "memory_max_bytes": by_runtime["memory_max_bytes"],
        "disk_max_bytes": "watch",
        "pids_max": by_runtime["pids_max"],
        "output_max_bytes": "log",
        "wall_clock_seconds": "clock",
        "start_seconds": "clock",
    }
    if limits.cpus is not None:
        kept["cpus"] = by_runtime["cpus"]
    if limits.idle_seconds is not None:
        kept["idle_seconds"] = "clock"
    return kept


def check_kept(limits: ResourceLimits, by_runtime: Mapping[str, str]) -> None:
    """For ``podman.require_cgroup_limits``.  Raises InvalidRequestError when the limit on processors has no effect."""
    if limits.cpus is not None and by_runtime["cpus"] != "cgroup":
        raise InvalidRequestError(
            f"limit cpus: {limits.cpus:g} processors cannot be kept here, since the cpu controller is not delegated, "
            "and podman.require_cgroup_limits is set; delegate it (podmentor doctor says how) or take the limit away",
            limit="cpus",
            asked=limits.cpus,
        )
