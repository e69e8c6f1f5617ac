"""What is said below a transcript: how it ended, what it used, what it changed, how to go on."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from orchestrator.cli.ui.safe import clean, one_line

_FILES = 20
_LETTERS = {
    "added": ("A", "green"),
    "modified": ("M", "yellow"),
    "deleted": ("D", "red"),
    "renamed": ("R", "cyan"),
    "mode": ("m", "yellow"),
}


def print_summary(
    console: Console,
    run: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]] | None,
    *,
    hint: str | None = None,
    advice: bool = True,
) -> None:
    """``changes`` None: they could not be had, or there is no overlay to look at.  ``advice``: say how to go on."""
    console.out("")
    outcome = run.get("outcome") or run.get("state") or "?"
    mark, style = {"completed": ("✓", "green"), "cancelled": ("■", "yellow")}.get(str(outcome), ("✗", "red"))
    parts = [f"{mark} {outcome}" + (f" in {seconds(took)}" if (took := duration(run)) is not None else "")]
    parts += usage_words(run.get("usage") or {})
    console.out(" · ".join(parts), style=style, highlight=False)
    if hint:
        console.out(f"hint: {hint}", style="yellow", highlight=False)
    if changes is not None:
        print_changes(console, changes)
    console.out(f"subagent {clean(str(run.get('subagent_id')))}", style="bold", highlight=False)
    if not advice:
        return
    backend = clean(str(run.get("backend")))
    again = f'podmentor run {backend} --subagent {clean(str(run.get("subagent_id")))} "…"'
    console.out(f"  go on with   {again}", style="dim", highlight=False)
    if changes:
        console.out(
            f"  see changes  podmentor changes diff {clean(str(run.get('subagent_id')))}", style="dim", highlight=False
        )


def print_changes(console: Console, changes: Sequence[Mapping[str, Any]], *, most: int = _FILES) -> None:
    """Totals, then one line for each file, at most ``most`` of them."""
    if not changes:
        console.out("no file changed", style="dim", highlight=False)
        return
    plus, minus = (sum(int(change.get(name) or 0) for change in changes) for name in ("insertions", "deletions"))
    console.out(f"{len(changes)} file{'s'[: len(changes) != 1]} changed, +{plus} -{minus}", highlight=False)
    for change in changes[:most]:
        letter, style = _LETTERS.get(str(change.get("change")), ("?", "dim"))
        console.out(f"  {letter} ", end="", style=style, highlight=False)
        console.out(f"{path_words(change)}  {counts(change)}", highlight=False)
    if len(changes) > most:
        console.out(f"  … {len(changes) - most} more", style="dim", highlight=False)


def path_words(change: Mapping[str, Any]) -> str:
    """The path; of a renamed file both."""
    path = one_line(str(change.get("path")), 200)
    return f"{one_line(str(change['old_path']), 200)} → {path}" if change.get("old_path") else path


def counts(change: Mapping[str, Any]) -> str:
    """``+3 -1``, ``100644 → 100755``, or ``binary``."""
    if change.get("change") == "mode":
        return f"{clean(str(change.get('old_mode')))} → {clean(str(change.get('mode')))}"
    if change.get("binary"):
        return "binary"
    return f"+{int(change.get('insertions') or 0)} -{int(change.get('deletions') or 0)}"


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
