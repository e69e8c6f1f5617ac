"""Sizes, times, limits and what a run has used, in words for people."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from orchestrator.cli.ui.safe import one_line

_NAMES = {
    "memory_max_bytes": ("memory", "peak_memory_bytes"),
    "disk_max_bytes": ("disk", "peak_disk_bytes"),
    "output_max_bytes": ("output", "output_bytes"),
    "pids_max": ("processes", "peak_pids"),
    "cpus": ("processors", "cpu_seconds"),
    "wall_clock_seconds": ("time", "duration_seconds"),
    "idle_seconds": ("silence", None),
    "start_seconds": ("start", None),
}
_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def limit_lines(run: Mapping[str, Any]) -> list[str]:
    """One line for each limit in force: the limit, how it is kept, and what was used."""
    limits, kept, usage = (run.get(name) or {} for name in ("limits", "enforcement", "usage"))
    lines = []
    for limit, (name, peak) in _NAMES.items():
        if (allowed := limits.get(limit)) is None:
            continue
        parts = [f"{name} {quantity(limit, allowed)}"]
        if (how := kept.get(limit)) is not None:
            parts.append("not kept on this machine" if how == "none" else f"by {one_line(str(how), 40)}")
        if peak is not None and isinstance(used := usage.get(peak), int | float):
            parts.append(f"used {quantity(peak, used)}")
        lines.append(", ".join(parts))
    return lines


def quantity(name: str, value: float) -> str:
    """``3.2 GiB``, ``90 s``, ``512``."""
    if name.endswith("_seconds"):
        return f"{value:.1f} s".replace(".0 ", " ")
    if not name.endswith("_bytes"):
        return f"{value:g}"
    for unit, factor in _UNITS:
        if value >= factor:
            return f"{value / factor:.1f} {unit}".replace(".0 ", " ")
    return f"{value:g} bytes"


def warning_words(data: Mapping[str, Any]) -> str | None:
    """What the event ``limit_warning`` says of a limit of the run; None: it is about something else (a provider's)."""
    limit = str(data.get("limit"))
    unit = "bytes" if limit.endswith("_bytes") else "seconds"
    used, allowed = data.get(f"used_{unit}"), data.get(f"limit_{unit}")
    if limit not in _NAMES or not isinstance(used, int | float) or not isinstance(allowed, int | float):
        return None
    return f"{quantity(limit, used)} of {quantity(limit, allowed)} {_NAMES[limit][0]} are used"


def size(count: int) -> str:
    """``12.3 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def usage_words(usage: Mapping[str, Any]) -> list[str]:
    """Tokens, price, turns, memory: those that are known."""
    words: list[str] = []
    tokens = usage.get("tokens")
    if isinstance(tokens, Mapping) and tokens:
        text = f"{int(tokens.get('input') or 0):,} tokens in, {int(tokens.get('output') or 0):,} out"
        cached = int(tokens.get("cache_read") or 0)
        words.append(text + (f" ({cached:,} from cache)" if cached else ""))
    if isinstance(cost := usage.get("cost_usd"), int | float):
        words.append(f"${cost:.4f}")
    if isinstance(turns := usage.get("turns"), int):
        words.append(f"{turns} turn{'s'[: turns != 1]}")
    if isinstance(peak := usage.get("peak_memory_bytes"), int | float):
        words.append(f"{peak / 1024**2:.0f} MiB")
    return words


def duration(run: Mapping[str, Any]) -> float | None:
    """Seconds from start (or acceptance) to end."""
    began, ended = _time(run.get("started_at") or run.get("created_at")), _time(run.get("finished_at"))
    return max(0.0, (ended - began).total_seconds()) if began and ended else None


def seconds(value: float) -> str:
    """``3.2 s`` or ``4 min 5 s``."""
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value) // 60} min {int(value) % 60} s"


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
