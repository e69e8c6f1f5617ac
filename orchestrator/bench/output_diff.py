"""What has changed from one version of a CLI to the next: the shape of its output and of the events made of it.

Ids, times, texts and the number of pieces differ from run to run; kinds, their order and the members of each do not.
Pure but for reading the recordings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_LABELS: Final = ("type", "subtype", "event.type", "item.type", "part.type", "status")
"""Members whose value tells one kind of line from another in the CLIs' output."""
_DEPTH: Final = 4
_FREE: Final = frozenset({"input", "details", "parameters", "arguments", "modelUsage", "models"})
"""Objects whose members are data, not format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference of one case."""

    case: str
    where: str
    """``events`` or ``output``."""
    what: str

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def compare(before: Path, after: Path) -> list[Change]:
    """The differences between the recordings in two folders.  Blocks."""
    old, new = ({meta.parent.name: meta.parent for meta in root.glob("*/meta.json")} for root in (before, after))
    changes: list[Change] = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(Change(case=name, where="events", what="not recorded any more"))
        elif name not in old:
            changes.append(Change(case=name, where="events", what="recorded for the first time"))
        else:
            changes += compare_case(name, old[name], new[name])
    return changes


def compare_case(name: str, old: Path, new: Path) -> list[Change]:
    """The differences of one case."""
    before, after = _objects(old / "events.jsonl"), _objects(new / "events.jsonl")
    events = _members_changed(event_members(before), event_members(after))
    if (was := sequence(before)) != (now := sequence(after)):
        events.insert(0, f"{' '.join(was)} -> {' '.join(now)}")
    lines_before, lines_after = _objects(old / "stdout.bin"), _objects(new / "stdout.bin")
    output = _members_changed(line_members(lines_before), line_members(lines_after))
    codes = [json.loads((folder / "meta.json").read_text(encoding="utf-8")).get("exit_code") for folder in (old, new)]
    if codes[0] != codes[1]:
        output.append(f"exit code {codes[0]} -> {codes[1]}")
    return [
        *(Change(case=name, where="events", what=what) for what in events),
        *(Change(case=name, where="output", what=what) for what in output),
    ]


def folded(changes: Iterable[Change]) -> list[tuple[str, str, str]]:
    """For people: (cases, where, what), each difference once, those of one kind of line together."""
    by_what: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        by_what.setdefault((change.where, change.what), []).append(change.case)
    lines: dict[tuple[str, str, str], list[str]] = {}
    for (where, what), cases in by_what.items():
        shown = ", ".join(cases) if len(cases) <= 2 else f"{cases[0]} and {len(cases) - 1} more"
        kind, sign, member = what.rpartition(": + ") if ": + " in what else what.rpartition(": - ")
        lines.setdefault((shown, where, f"{kind}{sign}"), []).append(member)
    return [(shown, where, f"{head}{', '.join(members)}") for (shown, where, head), members in lines.items()]


def sequence(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The kinds in their order, repetitions folded, with what matters of each."""
    names = [_name(event) for event in events]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def _name(event: Mapping[str, Any]) -> str:
    data = event.get("data", {})
    detail = data.get({"status": "phase", "error": "reason", "tool_use": "name"}.get(str(event["kind"]), ""))
    return f"{event['kind']}:{detail}" if detail else str(event["kind"])


def event_members(events: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """For each kind the members of its data."""
    out: dict[str, set[str]] = {}
    for event in events:
        out.setdefault(str(event["kind"]), set()).update(_paths(event.get("data", {})))
    return out


def line_members(lines: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """For each kind of line of the output its members."""
    out: dict[str, set[str]] = {}
    for line in lines:
        label = "/".join(str(value) for path in _LABELS if isinstance(value := _at(line, path), str))
        out.setdefault(label or "?", set()).update(_paths(line))
    return out


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _paths(value: Any, prefix: str = "", depth: int = _DEPTH) -> set[str]:
    if isinstance(value, Mapping) and depth:
        out: set[str] = set()
        for name, item in value.items():
            path = f"{prefix}.{name}" if prefix else str(name)
            out |= {path} if name in _FREE else _paths(item, path, depth - 1)
        return out or {prefix}
    if isinstance(value, list) and depth:
        return set().union(*(_paths(item, f"{prefix}[]", depth - 1) for item in value)) or {f"{prefix}[]"}
    return {prefix}


def _members_changed(before: Mapping[str, set[str]], after: Mapping[str, set[str]]) -> list[str]:
    out = [f"no {kind} any more" for kind in sorted(before.keys() - after.keys())]
    out += [f"new: {kind}" for kind in sorted(after.keys() - before.keys())]
    for kind in sorted(before.keys() & after.keys()):
        out += [f"{kind}: - {member}" for member in sorted(before[kind] - after[kind])]
        out += [f"{kind}: + {member}" for member in sorted(after[kind] - before[kind])]
    return out


def _objects(path: Path) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
