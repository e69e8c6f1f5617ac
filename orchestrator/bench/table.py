"""The capability table in docs/backends.md: the part between two marks is written by the bench, the rest by people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.bench.check import LAST_NUMBER, LAST_TITLE
from orchestrator.bench.checks import CHECKS
from orchestrator.bench.seen import write_whole
from orchestrator.errors import StorageError

BEGIN: Final = "<!-- written by `podmentor bench --write-capabilities`: do not edit -->"
END: Final = "<!-- end of what is written -->"
TITLES: Final[dict[str, str]] = {
    "streaming": "events while the model answers",
    "deltas": "text in pieces",
    "thinking": "reasoning",
    "tools": "tool calls",
    "tool_errors": "failing tools recognised",
    "edits": "edits in the diff",
    "resume": "resume",
    "retry_notices": "retries reported",
    "length_limit": "length limit recognised",
    "usage": "token usage",
    "cost": "cost",
}
"""Capability to what people call it, in the order of the table."""
UNTRIED_TITLES: Final = {"mcp": "MCP servers (declared)", "byo_subscription": "own subscription (declared)"}


def write_table(path: Path, backends: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the written part of the document.  Raises StorageError when it has no place for it.  Blocks."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise StorageError(f"{path} has no place for the table: the lines {BEGIN!r} and {END!r} are missing")
    write_whole(path, f"{head}{BEGIN}\n{render(backends)}{END}{tail}")


def render(backends: Mapping[str, Mapping[str, Any]]) -> str:
    """The table: a column for each backend.  Pure."""
    if not backends:
        return "\nNothing has been tried yet.\n"
    rows = [
        ["", *(f"`{name}`" for name in backends)],
        ["---"] * (len(backends) + 1),
        ["CLI version", *(str(entry.get("cli_version") or "?") for entry in backends.values())],
        ["tried on", *(str(entry.get("when")) for entry in backends.values())],
    ]
    for capability, title in TITLES.items():
        rows.append([title, *(_word(entry.get("capabilities", {}).get(capability)) for entry in backends.values())])
    for name, title in UNTRIED_TITLES.items():
        rows.append([title, *(_word(entry.get("declared", {}).get(name)) for entry in backends.values())])
    for name, title in (("start", "first event after"), ("first_text", "first text after")):
        rows.append([title, *(_seconds(entry.get("timings", {}).get(name)) for entry in backends.values())])
    rows.append(["checks", *(_checks(entry.get("checks", {})) for entry in backends.values())])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    numbered = [*((check.number, check.title) for check in CHECKS), (LAST_NUMBER, LAST_TITLE)]
    checks = "".join(f"| {number} | {title} |\n" for number, title in numbered)
    return f"\n{table}\nThe checks:\n\n| number | what must hold |\n| --- | --- |\n{checks}"


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, "?")


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else "?"


def _checks(outcomes: Mapping[str, str]) -> str:
    passed = sum(outcome == "pass" for outcome in outcomes.values())
    unsupported = [number for number, outcome in outcomes.items() if outcome == "unsupported"]
    failed = [number for number, outcome in outcomes.items() if outcome == "fail"]
    return "; ".join(
        [
            f"{passed} pass",
            *([f"{', '.join(unsupported)} not supported"] if unsupported else []),
            *([f"**{', '.join(failed)} failed**"] if failed else []),
        ]
    )
