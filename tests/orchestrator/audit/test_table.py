"""The table of events, the code that writes them, and docs/audit.md agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.contract.audit import ENVELOPE, EVENTS

ROOT = Path(__file__).parents[3]
STARRED: dict[str, str] = {
    "about": "user_id run_id backend host port count",
    "who": "user_id run_id backend",
    "_facts": "actor backend version from_version",
}
"""What the few calls hand over that do not spell out all their facts."""


def calls() -> Iterator[tuple[str, set[str], bool]]:
    """Every ``….record("event", …)`` and ``….note(…)`` of the code."""
    for path in (ROOT / "orchestrator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if (
                node.func.attr not in {"record", "note"}
                or not node.args
                or "audit" not in ast.unparse(node.func).lower()
            ):
                continue
            for event in events_of(node.args[0], path):
                yield event, facts_of(node), node.func.attr == "record"


def events_of(node: ast.expr, path: Path) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    assert ast.unparse(node) == "event", f"{path}: an event that no table can know: {ast.unparse(node)}"
    return [] if path.name == "log.py" else ["changes.completed", "changes.rolled_back"]  # runs/supervisor.py


def facts_of(node: ast.Call) -> set[str]:
    found = set()
    for keyword in node.keywords:
        if keyword.arg is not None:
            found.add(keyword.arg)
        else:
            name: Any = ast.unparse(keyword.value).split("(")[0].rpartition(".")[2]
            found.update(STARRED[name].split())
    return found


def test_every_event_is_written_with_the_facts_of_the_table() -> None:
    seen: dict[str, tuple[set[str], bool]] = {}
    for event, facts, strict in calls():
        before = seen.get(event, (set(), strict))
        seen[event] = (before[0] | facts - {"actor"}, strict)
    assert {event: (set(one.facts), one.before) for event, one in EVENTS.items()} == seen


def test_the_document_has_the_same_table() -> None:
    rows = {}
    for line in (ROOT / "docs" / "audit.md").read_text().splitlines():
        if match := re.fullmatch(r"\| `([a-z_.]+)` \| (before|after) \| ([^|]*) \| ([^|]*) \|", line):
            rows[match[1]] = (match[2], tuple(re.findall(r"`(\w+)`", match[3])), match[4])
    assert rows == {
        event: ("before" if one.before else "after", one.facts, one.meaning) for event, one in EVENTS.items()
    }


def test_facts_are_named_once_and_in_the_order_of_the_envelope() -> None:
    for event, one in EVENTS.items():
        assert len(set(one.facts)) == len(one.facts), event
        head = [name for name in one.facts if name in ENVELOPE]
        assert one.facts[: len(head)] == tuple(name for name in ENVELOPE if name in head), event
