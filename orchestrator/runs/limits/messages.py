"""How excess is reported: one shape of ``details`` for all limits, and the sentences.  Pure.

``details`` has ``limit`` (the name of the setting), and limit and use as ``limit_bytes`` and ``used_bytes`` or as
``limit_seconds`` and ``used_seconds``.
"""

from __future__ import annotations

from typing import Any, Final

from orchestrator.events import Error, ErrorReason, Status

WARN_AT: Final = 0.8
"""Part of a limit at which its warning is given."""
REASONS: Final[dict[ErrorReason, str]] = {
    "memory_exceeded": "memory_max_bytes",
    "disk_exceeded": "disk_max_bytes",
    "output_exceeded": "output_max_bytes",
    "timeout": "wall_clock_seconds",
    "idle_timeout": "idle_seconds",
    "start_timeout": "start_seconds",
}
"""Each reason, and the limit that it is the excess of."""
_UNITS: Final = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def measures(limit: str, allowed: float, used: float) -> dict[str, Any]:
    """The part of ``details`` (and of a warning) that is the same for all limits."""
    if limit.endswith("_bytes"):
        return {"limit": limit, "limit_bytes": int(allowed), "used_bytes": int(used)}
    return {"limit": limit, "limit_seconds": allowed, "used_seconds": round(used, 3)}


def exceeded(reason: ErrorReason, allowed: float, used: float, **more: Any) -> Error:
    """The error of a run that went over a limit; ``more`` goes into its details."""
    details = measures(REASONS[reason], allowed, used)
    return Error(reason=reason, message=_sentence(reason, allowed, used), details={**details, **more})


def warning(limit: str, allowed: float, used: float) -> Status:
    """The status event that warns of an excess: ``WARN_AT`` of the limit is used."""
    return Status(phase="limit_warning", info=measures(limit, allowed, used))


def size_words(size: float, other: float | None = None) -> str:
    """Bytes for people: ``3.2 GiB``; the exact number where that would read the same as ``other``."""
    text = _rounded(size)
    return f"{int(size)} bytes" if other is not None and size != other and text == _rounded(other) else text


def _rounded(size: float) -> str:
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}".replace(".0 ", " ")
    return f"{int(size)} bytes"


def _sentence(reason: ErrorReason, allowed: float, used: float) -> str:
    match reason:
        case "memory_exceeded":
            wanted = (  # the kernel lets nobody get over a cgroup's limit
                f"used {size_words(used, allowed)} of memory, over the limit of"
                if used > allowed
                else "wanted more memory than their limit of"
            )
            return (
                f"The agent's processes {wanted} {size_words(allowed)}; give it less at once to do, or allow more "
                "with `limits.memory_max_bytes`."
            )
        case "disk_exceeded":
            return (
                f"The agent had {size_words(used, allowed)} in its workspace and home, over the limit of "
                f"{size_words(allowed)}, and was ended. See what it wrote with `podmentor changes list`, drop it with "
                "`podmentor changes discard`, or allow more with `limits.disk_max_bytes`."
            )
        case "output_exceeded":
            return (
                f"The agent printed {size_words(used, allowed)}, over the limit of {size_words(allowed)}; what it "
                "printed until then is kept."
            )
        case "idle_timeout":
            return f"The agent printed nothing for {used:.1f} s, over the limit of {allowed:g} s."
        case "start_timeout":
            return (
                f"The agent printed nothing within {allowed:g} s of its start ({used:.1f} s have passed); the run's "
                "log and `podmentor doctor` may say why."
            )
        case _:
            return (
                f"The run took {used:.1f} s, over its limit of {allowed:g} s; continue it with its subagent id, or "
                "allow more with `limits.wall_clock_seconds`."
            )
