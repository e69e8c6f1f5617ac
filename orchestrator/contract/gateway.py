"""The relay: the process that carries the runs' traffic, so that it goes on when the service is restarted.

Each run has its own Unix socket in its control directory.  The real key lives in the relay's memory only.  A run with
a subscription has no such key: its CLI brings its own login, which is passed through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.egress import EgressGrant, EgressListener


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayGrant:
    """What one run may do at the gateway.

    With ``api_key`` the request must carry the run's token, which is exchanged for the key.  Without it (pass-through)
    the run is known by its socket alone, and what the CLI sends in the route's ``key_headers`` goes on as it is; the
    rules for methods, paths and all other headers are the same.
    """

    run_id: str
    socket_path: Path
    token_sha256: str
    """Hex digest of the run's token; the token itself is known to the container only."""
    route: GatewayRoute
    api_key: str | None = field(repr=False)
    expires_at: float
    """Unix time after which the grant ends by itself, whatever became of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorTotals:
    """One kind of way out, of all runs together, since the relay's start."""

    open: int
    """Connections now."""
    connections: int
    requests: int
    """Passed on; of the egress proxy: joined connections."""
    refusals: int
    failures: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTotals:
    """What has gone through the relay."""

    gateway: DoorTotals
    egress: DoorTotals


class Relay(Protocol):
    """Control of the relay process."""

    async def start(self) -> None:
        """Find the relay that an earlier service left, or start one."""
        ...

    async def grant(self, grant: GatewayGrant) -> None:
        """Open the run's socket.  The same run again replaces its grant (key, expiry) without closing streams."""
        ...

    async def grant_egress(self, grant: EgressGrant) -> None:
        """Open the run's egress proxy.  The same run again replaces its rules without closing what is connected."""
        ...

    def listen(self, listener: EgressListener) -> None:
        """Call ``listener`` with every report of the proxies, one after the other, those of before the start included.

        To be called before ``start``.  A report may come twice when the service was killed while it took it.
        """
        ...

    async def revoke(self, run_id: str) -> None:
        """Close and remove the run's sockets; unknown ids are fine.  The run's reports have been taken on return."""
        ...

    async def granted(self) -> set[str]:
        """The runs that have a socket now."""
        ...

    async def totals(self) -> RelayTotals | None:
        """What has gone through it; None: there is no relay now, or one that does not count."""
        ...

    async def aclose(self, *, keep: bool) -> None:
        """Let go.  ``keep``: leave the relay running for runs that go on; else end it and reap it."""
        ...
