"""What one run may use of the relay: its gateway and its egress proxy, granted, given further hosts, revoked."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from orchestrator.config.models import Paths
from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.egress import EgressGrant
from orchestrator.contract.gateway import GatewayGrant, Relay
from orchestrator.contract.runs import RunRecord
from orchestrator.runs.storage.store import Store
from orchestrator.system.times import seconds_since

GRACE_SECONDS: Final = 120
"""How much longer than the run's wall clock its grants hold when no service looks after it."""


def wall_clock_left(record: RunRecord) -> float:
    """Seconds that a run has left; negative when its time is over."""
    return record.limits.wall_clock_seconds - (seconds_since(record.started_at) if record.started_at else 0.0)


class RunGrants:
    """The grants of one run.

    The proxy's rules are always those of the database: whoever changes them there calls ``renew_proxy``.
    """

    def __init__(self, run_id: str, *, relay: Relay, store: Store, paths: Paths) -> None:
        self._id = run_id
        self._relay = relay
        self._store = store
        self._directory = paths.control_dir(run_id)
        self._lock = asyncio.Lock()
        self._expires_at = 0.0
        self._proxy = False

    async def open_gateway(
        self, record: RunRecord, route: GatewayRoute, api_key: str | None, *, token_sha256: str
    ) -> None:
        """Open the gateway, anew if it is open.  Raises SandboxError.

        ``api_key`` None: the CLI has its own login, which is passed through.
        """
        await self._relay.grant(
            GatewayGrant(
                run_id=self._id,
                socket_path=self._directory / "gateway.sock",
                token_sha256=token_sha256,
                route=route,
                api_key=api_key,
                expires_at=_expires_at(record),
            )
        )

    async def open_proxy(self, record: RunRecord) -> None:
        """Open the proxy, unless the run has none.  Raises SandboxError."""
        async with self._lock:
            self._expires_at = _expires_at(record)
            self._proxy = await self._grant_proxy()

    async def renew_proxy(self) -> None:
        """The rules have changed; they hold at once, or from ``open_proxy`` on.  Raises SandboxError."""
        async with self._lock:
            if self._proxy:
                await self._grant_proxy()

    async def revoke(self) -> None:
        """Close every socket of the run; what was not reported yet is reported first."""
        async with self._lock:
            self._proxy = False
            await self._relay.revoke(self._id)

    async def _grant_proxy(self) -> bool:
        rules = await self._store.egress_rules(self._id)
        if rules is None:
            return False
        await self._relay.grant_egress(
            EgressGrant(
                run_id=self._id,
                socket_path=self._directory / "egress.sock",
                rules=rules,
                expires_at=self._expires_at,
            )
        )
        return True


def _expires_at(record: RunRecord) -> float:
    """When the grants end should no service revoke them: seconds since the epoch."""
    return time.time() + wall_clock_left(record) + GRACE_SECONDS
