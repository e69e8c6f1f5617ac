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


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Counts of a gateway or proxy, or of several together."""

    open: int = 0
    """Connections of clients now."""
    connections: int = 0
    """Connections of clients so far."""
    requests: int = 0
    """Passed on to the provider; at a proxy, connections joined to a host."""
    refusals: int = 0
    failures: int = 0
    """Allowed, but the other side could not be reached or broke off; at a proxy, also requests that it cannot read."""
    bytes_up: int = 0
    """From the run: bodies of requests at the gateway, everything behind the head at a proxy."""
    bytes_down: int = 0
    """To the run, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTotals:
    """What has gone through the relay since its start, of all runs together."""

    gateway: Traffic
    egress: Traffic
    """Through the proxies."""


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
        """Ids of the runs that have a socket now, those of an earlier service included."""
        ...

    async def totals(self) -> RelayTotals | None:
        """What has gone through it; None: there is no relay now."""
        ...

    async def aclose(self, *, keep: bool) -> None:
        """Detach from the relay.  ``keep``: leave it running for runs that go on; else end it and reap it."""
        ...
