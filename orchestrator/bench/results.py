"""What the bench works with: what was observed of a run, what a check says of it, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.contract.runs import RunRecord
from orchestrator.events import EventRecord

Outcome: TypeAlias = Literal["pass", "fail", "unsupported", "skipped"]
"""``unsupported``: the CLI cannot do it, as was observed; ``skipped``: not even a plain answer came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One finished run."""

    record: RunRecord
    events: tuple[EventRecord, ...]
    log: Path | None = None
    """conmon's log of it."""
    resumed: str | None = None
    """The CLI's session id that it was asked to resume."""

    @property
    def reason(self) -> str:
        """Of the error that ended it; empty when it completed."""
        return str((self.record.error or {}).get("reason", ""))

    @property
    def how(self) -> str:
        """How it ended, for people."""
        error = self.record.error or {}
        return f"{error['reason']}: {str(error.get('message', ''))[:200]}" if error else str(self.record.outcome)

    def of(self, kind: str) -> list[EventRecord]:
        """Its events of one kind."""
        return [event for event in self.events if event.kind == kind]

    def phases(self) -> list[str]:
        """The phases of its status events."""
        return [str(event.data.get("phase")) for event in self.of("status")]

    @property
    def text(self) -> str:
        """All that the agent said, its messages one after the other."""
        return "".join(str(event.data["text"]) for event in self.of("message_delta"))

    @property
    def seconds(self) -> float:
        """From taken out of the line to finished."""
        return self.seconds_until(self.record.finished_at) or 0.0

    def seconds_until(self, ts: str | None) -> float | None:
        """From taken out of the line until ``ts``."""
        if ts is None or self.record.started_at is None:
            return None
        return (datetime.fromisoformat(ts) - datetime.fromisoformat(self.record.started_at)).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one scene brought to light.  ``failure``: it could not be played to its end, and why."""

    name: str
    runs: tuple[Observed, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that the provider counts for an answer: of the prompt (``cached`` ones among them) and of the answer."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was observed of a backend, and what it says of itself."""

    scenes: Mapping[str, Seen]
    supports_resume: bool = True
    declared: Mapping[str, bool] = field(default_factory=dict)
    """The adapter's capabilities, and ``usage``."""
    sent: Usage = field(default_factory=lambda: Usage(prompt=0, cached=0, output=0))
    """What the provider has counted for the plain answer."""
    broken: tuple[str, ...] = ()
    """Contracts of the conformance kit that the runs have broken."""

    def runs(self) -> Iterator[Observed]:
        """Every run."""
        for scene in self.scenes.values():
            yield from scene.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says."""

    number: str
    title: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReport:
    """The bench's word on one backend."""

    backend: str
    image_tag: str | None
    cli_version: str | None
    when: str
    """RFC 3339 UTC."""
    results: tuple[CheckResult, ...]
    capabilities: Mapping[str, bool]
    """What was observed of it."""
    declared: Mapping[str, bool]
    """What its adapter says of it."""
    timings: Mapping[str, float]
    """Seconds, for information: they depend on the machine."""

    @property
    def ok(self) -> bool:
        """No check failed, and all were made."""
        return bool(self.results) and all(result.outcome in {"pass", "unsupported"} for result in self.results)

    def counts(self) -> dict[str, int]:
        """How many checks had each outcome."""
        out: dict[str, int] = {}
        for result in self.results:
            out[result.outcome] = out.get(result.outcome, 0) + 1
        return out

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, **asdict(self), "results": [asdict(result) for result in self.results]}
