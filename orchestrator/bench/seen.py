"""What the bench has observed of each backend, kept: a file that comes with podmentor, and one of this machine's own.

``{"backends": {NAME: {cli_version, when, capabilities, checks, timings}}}``
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from orchestrator.bench.results import BackendReport
from orchestrator.errors import StorageError

PACKAGED: Final = Path(__file__).with_name("seen.json")
"""Comes with podmentor: of the CLI versions that it pins."""
SEEN_NAME: Final = "seen.json"
"""In the state directory: of the versions that this machine was upgraded to."""

UNTRIED: Final = ("mcp", "byo_subscription")
"""Capabilities that the bench does not try: what the adapter declares is shown of them."""


class SeenFiles:
    """Looks into several files, the last one first.  They are read anew when they have changed; reading blocks."""

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._known: dict[Path, tuple[float, dict[str, Any]]] = {}

    def lookup(self, backend: str, cli_version: str) -> Mapping[str, Any] | None:
        """What was observed of exactly this version."""
        for path in reversed(self._files):
            entry = self._read(path).get(backend)
            if isinstance(entry, dict) and entry.get("cli_version") == cli_version:
                return {name: entry.get(name) for name in ("cli_version", "when", "capabilities", "timings")}
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            changed = path.stat().st_mtime
        except OSError:
            return {}
        if path not in self._known or self._known[path][0] != changed:
            self._known[path] = (changed, read(path))
        return self._known[path][1]


def read(path: Path) -> dict[str, Any]:
    """The backends in a file; empty when there is none, or when it cannot be understood."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        backends = json.loads(path.read_text(encoding="utf-8"))["backends"]
        return backends if isinstance(backends, dict) else {}
    return {}


def entry_of(report: BackendReport) -> dict[str, Any]:
    """What is kept of a report."""
    return {
        "cli_version": report.cli_version,
        "when": report.when[:10],
        "capabilities": dict(report.capabilities),
        "declared": {name: bool(report.declared.get(name)) for name in UNTRIED},
        "checks": {result.number: result.outcome for result in report.results},
        "timings": dict(report.timings),
    }


def update(path: Path, reports: Iterable[BackendReport], *, base: Path | None = None) -> dict[str, Any]:
    """Write the reports to ``path``, beside what is known of other backends (there, or else in ``base``); all that is
    known now.  Raises StorageError."""
    known = read(path) or (read(base) if base is not None else {})
    known |= {report.backend: entry_of(report) for report in reports}
    write_whole(path, json.dumps({"backends": dict(sorted(known.items()))}, indent=2) + "\n")
    return dict(sorted(known.items()))


def write_whole(path: Path, text: str) -> None:
    """The whole file or nothing.  Raises StorageError."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)  # noqa: PTH105  # as atomic as it says
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
