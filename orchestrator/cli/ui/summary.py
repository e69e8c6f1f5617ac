"""What is said below a transcript: how it ended, what it used, what it changed, how to go on."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from orchestrator.cli.ui.quantities import duration, seconds, usage_words
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
