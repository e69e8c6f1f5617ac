"""A run's egress proxy from the run's side: opened, given further hosts, closed; and what it reports."""

from __future__ import annotations

import asyncio
import logging

from orchestrator.contract.audit import Fact
from orchestrator.contract.egress import EgressGrant, EgressReport
from orchestrator.errors import NotFoundError, PodmentorError
from orchestrator.events import Status
from orchestrator.runs.clock import now, ways_out_end
from orchestrator.runs.deps import Deps
from orchestrator.runs.observe.telemetry import count_report
from orchestrator.runs.stream.journal import Entry

log = logging.getLogger(__name__)


class EgressDoor:
    """The proxy of one run.  Its rules are always those of the database: whoever changes them there calls ``renew``."""

    def __init__(self, run_id: str, deps: Deps) -> None:
        self._id = run_id
        self._deps = deps
        self._lock = asyncio.Lock()
        self._open = False

    async def open(self) -> None:
        """Open it, unless the run has none.  Raises SandboxError."""
        async with self._lock:
            self._open = await self._grant()

    async def reopen(self) -> None:
        """Open it for a run that is taken over, which goes on without it when that cannot be."""
        try:
            await self.open()
        except PodmentorError as error:
            log.warning("run %s is taken over without its egress proxy: %s", self._id, error.message)

    async def renew(self) -> None:
        """The rules have changed; they hold at once, or from ``open`` on.  Raises SandboxError."""
        async with self._lock:
            if self._open:
                await self._grant()

    async def close(self) -> None:
        """Close every socket of the run; what was not reported yet is reported first."""
        async with self._lock:
            self._open = False
            await self._deps.relay.revoke(self._id)

    async def _grant(self) -> bool:
        record = (await self._deps.store.run(self._id)).record
        if record.egress is None:
            return False
        await self._deps.relay.grant_egress(
            EgressGrant(
                run_id=self._id,
                socket_path=self._deps.paths.control_dir(self._id) / "egress.sock",
                rules=record.egress,
                expires_at=ways_out_end(record.limits, record.started_at),
            )
        )
        return True


async def note_report(report: EgressReport, deps: Deps) -> None:
    """A report of the proxy: denials into the run's stream, everything into the audit log."""
    count_report(report, deps.metrics)
    try:
        record = (await deps.store.run(report.run_id)).record
    except NotFoundError:
        return  # deleted meanwhile
    about: dict[str, Fact] = {
        "user_id": record.user_id,
        "run_id": report.run_id,
        "backend": record.backend,
        "host": report.host,
        "port": report.port,
        "count": report.count,
    }
    if report.verdict == "allowed":
        await deps.audit.note("egress.allowed", **about, bytes_up=report.bytes_up, bytes_down=report.bytes_down)
        return
    await deps.audit.note("egress.denied", **about, reason=report.reason)
    info = {"host": report.host, "port": report.port, "reason": report.reason, "count": report.count}
    await deps.journal.append(report.run_id, [Entry(now(), "orchestrator", Status(phase="egress_denied", info=info))])
