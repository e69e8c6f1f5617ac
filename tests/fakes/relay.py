"""A relay that only remembers what it was given."""

from __future__ import annotations

import asyncio

from orchestrator.contract.egress import EgressGrant, EgressListener, EgressReport
from orchestrator.contract.gateway import GatewayGrant, RelayTotals


class FakeRelay:
    """Implements ``Relay``."""

    def __init__(self) -> None:
        self.grants: dict[str, GatewayGrant] = {}
        self.egress: dict[str, EgressGrant] = {}
        self.rules: list[tuple[str, ...]] = []
        """Of every egress grant, in their order."""
        self.failure: Exception | None = None
        """Raised by the next egress grant."""
        self.last_words: list[EgressReport] = []
        """Reported while a run is revoked."""
        self.history: list[GatewayGrant] = []
        self.hold: asyncio.Event | None = None
        """A relay that hangs."""
        self.kept: bool | None = None
        self.counts: RelayTotals | None = None
        self._listener: EgressListener | None = None

    async def start(self) -> None:
        return None

    async def grant(self, grant: GatewayGrant) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.grants[grant.run_id] = grant
        self.history.append(grant)

    async def grant_egress(self, grant: EgressGrant) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.egress[grant.run_id] = grant
        self.rules.append(grant.rules)

    def listen(self, listener: EgressListener) -> None:
        self._listener = listener

    async def report(self, report: EgressReport) -> None:
        """Make the proxy report something."""
        assert self._listener is not None
        await self._listener(report)

    async def revoke(self, run_id: str) -> None:
        self.grants.pop(run_id, None)
        self.egress.pop(run_id, None)
        while self.last_words:
            await self.report(self.last_words.pop(0))

    async def granted(self) -> set[str]:
        return {*self.grants, *self.egress}

    async def totals(self) -> RelayTotals | None:
        return self.counts

    async def aclose(self, *, keep: bool) -> None:
        self.kept = keep
