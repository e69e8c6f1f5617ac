"""A relay that only remembers what it was told."""

from __future__ import annotations

from orchestrator.contract.gateway import GatewayGrant


class FakeRelay:
    """Implements ``Relay``."""

    def __init__(self) -> None:
        self.grants: dict[str, GatewayGrant] = {}
        self.history: list[GatewayGrant] = []
        self.kept: bool | None = None

    async def start(self) -> None:
        return None

    async def grant(self, grant: GatewayGrant) -> None:
        self.grants[grant.run_id] = grant
        self.history.append(grant)

    async def revoke(self, run_id: str) -> None:
        self.grants.pop(run_id, None)

    async def granted(self) -> set[str]:
        return set(self.grants)

    async def aclose(self, *, keep: bool) -> None:
        self.kept = keep
