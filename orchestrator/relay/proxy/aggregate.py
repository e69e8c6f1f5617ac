"""One run's attempts, put together into reports that stay few however many attempts there are.  Pure.

The first attempt at a target is reported at once; equal ones within the next minute are counted, and their number is
reported at its end.  Time is whatever monotonic clock the caller uses, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from orchestrator.contract.egress import EgressReport

WINDOW_SECONDS: Final = 60.0
MAX_TARGETS: Final = 50
"""Of either verdict, per window; what is beyond is counted together."""
OTHERS: Final = "*"

_Key = tuple[Literal["allowed", "denied"], str, int]


@dataclass(slots=True)
class _Window:
    ends_at: float
    waiting: EgressReport | None = None


class Aggregator:
    """Makes the reports of one run out of its attempts."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._windows: dict[_Key, _Window] = {}

    def denied(self, host: str, port: int, reason: str, now: float) -> list[EgressReport]:
        """Count a denied attempt; what is to be reported now."""
        return self._note(EgressReport(run_id=self._run_id, verdict="denied", host=host, port=port, reason=reason), now)

    def ended(self, host: str, port: int, *, up: int, down: int, now: float) -> list[EgressReport]:
        """Count a connection that has ended after so many bytes; what is to be reported now."""
        return self._note(
            EgressReport(run_id=self._run_id, verdict="allowed", host=host, port=port, bytes_up=up, bytes_down=down),
            now,
        )

    def due(self, now: float) -> list[EgressReport]:
        """The counts of windows that have ended."""
        reports = []
        for key, window in list(self._windows.items()):
            if window.ends_at <= now:
                if window.waiting is None:
                    del self._windows[key]
                else:
                    reports.append(window.waiting)
                    self._windows[key] = _Window(now + WINDOW_SECONDS)
        return reports

    def close(self) -> list[EgressReport]:
        """Everything that was not reported yet."""
        reports = [window.waiting for window in self._windows.values() if window.waiting is not None]
        self._windows.clear()
        return reports

    def _note(self, report: EgressReport, now: float) -> list[EgressReport]:
        reports = self.due(now)
        key: _Key = (report.verdict, report.host, report.port)
        window = self._windows.get(key)
        if window is None:
            if sum(verdict == report.verdict for verdict, _, _ in self._windows) < MAX_TARGETS:
                self._windows[key] = _Window(now + WINDOW_SECONDS)
                return [*reports, report]
            reason = "many hosts were tried at once" if report.verdict == "denied" else ""
            report = replace(report, host=OTHERS, port=0, reason=reason)
            window = self._windows.setdefault((report.verdict, OTHERS, 0), _Window(now + WINDOW_SECONDS))
        before = window.waiting
        window.waiting = (
            report
            if before is None
            else replace(
                before,
                count=before.count + 1,
                reason=report.reason,
                bytes_up=before.bytes_up + report.bytes_up,
                bytes_down=before.bytes_down + report.bytes_down,
            )
        )
        return reports
