"""One run's egress proxy, on the run's own Unix socket.

It looks names up itself, checks every address that comes out, and connects to one of those addresses, so that no second
look-up can lead elsewhere.  Behind an upstream proxy it is that one which looks up, and what is not known here cannot
be checked here.  What flows through a tunnel is not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from orchestrator.config.hosts import Address, as_address
from orchestrator.contract.egress import EgressGrant, EgressReport
from orchestrator.contract.gateway import Traffic
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from orchestrator.relay.pace import Pace, Paced
from orchestrator.relay.proxy.aggregate import Aggregator
from orchestrator.relay.proxy.connect import UpstreamProxyError, connect, connect_through, is_own
from orchestrator.relay.proxy.handshake import Abort, Handshake
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.request import Connect, Head, Request
from orchestrator.relay.proxy.http1.response import AnswerFilter, answer
from orchestrator.relay.proxy.resolver import Resolver, UnknownNameError
from orchestrator.relay.proxy.rules import Allow, Deny, Rules, unmapped
from orchestrator.relay.proxy.tunnel import Tunnel
from orchestrator.relay.sockets import RunSocket
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

RESOLVE_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 2.0
"""What a look-up may take that an upstream proxy does once more."""
LOOKUPS: Final = 4
"""At the same time, for one run: names that take long must not keep others waiting."""
REFUSED_AT_ONCE: Final = 16
"""Connections over the limit that get an answer at the same time; those beyond are closed silently, since each that is
answered stays for a moment and takes one of the descriptors that all runs share."""


class RunProxy:
    """Serves one grant until ``aclose``.  ``report`` is called with every report that is due."""

    def __init__(
        self,
        grant: EgressGrant,
        *,
        resolver: Resolver,
        limits: Limits,
        report: Callable[[EgressReport], None],
        uplink: Uplink,
    ) -> None:
        self.grant = grant
        self.traffic = Traffic()
        self._rules = Rules.of(grant.rules)
        self._resolver = resolver
        self._limits = limits
        self._uplink = uplink
        self._report = report
        self._aggregator = Aggregator(grant.run_id)
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._pace = Pace()
        self._tasks = TaskOwner(f"proxy {grant.run_id[:8]}")
        self._handshakes: set[Handshake] = set()
        self._tunnels: set[Tunnel] = set()
        self._socket = RunSocket(self._accept, backlog=limits.connections)

    async def open(self) -> None:
        """Listen at the grant's socket.  Raises: OSError."""
        await self._socket.open(self.grant.socket_path)

    async def replace(self, grant: EgressGrant) -> None:
        """Serve ``grant`` from the next connection on; those that are joined go on.  Raises: OSError."""
        previous = (self.grant, self._rules)
        self.grant, self._rules = grant, Rules.of(grant.rules)
        try:
            await self._socket.ensure(grant.socket_path)
        except OSError:
            self.grant, self._rules = previous
            raise

    async def aclose(self) -> None:
        """Stop listening, remove the socket, cut what is under way, report what was not reported yet."""
        await self._socket.aclose()
        for handshake in list(self._handshakes):
            handshake.abort()
        for tunnel in list(self._tunnels):
            tunnel.abort()
        await self._tasks.aclose(grace=1.0)
        await asyncio.sleep(0)  # the ends of connections that were cut are reported in the loop's next turn
        self._report_all(self._aggregator.close())

    def totals(self) -> Traffic:
        """The counts of this moment, what is under way included."""
        return replace(
            self.traffic,
            open=len(self._handshakes) + len(self._tunnels),
            bytes_up=self.traffic.bytes_up + sum(tunnel.client.count for tunnel in self._tunnels),
            bytes_down=self.traffic.bytes_down + sum(tunnel.server.count for tunnel in self._tunnels),
        )

    def report_due(self) -> None:
        """Report the counts that are due."""
        self._report_all(self._aggregator.due(time.monotonic()))

    def _report_all(self, reports: Iterable[EgressReport]) -> None:
        for report in reports:
            self._report(report)

    # --- one connection ----------------------------------------------------------------------------------------------

    def _accept(self) -> asyncio.Protocol:
        present = len(self._handshakes) + len(self._tunnels)
        if present >= self._limits.connections + REFUSED_AT_ONCE:
            return Abort()
        tunnel = Tunnel(idle_seconds=self._limits.idle_seconds, on_end=lambda: self._tunnels.discard(tunnel))
        handshake = Handshake(
            tunnel, on_head=self._head_received, on_error=self._misread, on_end=self._handshakes.discard
        )
        if present >= self._limits.connections:
            handshake.refusal = answer(503, "too many connections at once; close some", code="too_many_connections")
        self._handshakes.add(handshake)
        self.traffic.connections += 1
        return handshake

    def _misread(self, handshake: Handshake, error: WireError) -> None:
        self.traffic.failures += 1
        handshake.refuse(answer(error.status, error.message, code="request_refused"))

    def _head_received(self, handshake: Handshake, head: Head) -> None:
        decision = self._rules.decide(head.host, head.port)
        if isinstance(decision, Deny):
            self._deny(handshake, decision)
        else:
            self._tasks.spawn(self._serve(handshake, head, decision), name="connect")

    def _deny(self, handshake: Handshake, denial: Deny) -> None:
        self.traffic.refusals += 1
        self._report_all(self._aggregator.denied(denial.host, denial.port, denial.reason, time.monotonic()))
        target = f"[{denial.host}]:{denial.port}" if ":" in denial.host else f"{denial.host}:{denial.port}"
        handshake.refuse(
            answer(
                403,
                f"{target} denied: {denial.reason}",
                f"This run may reach: {self._rules.shown()}.\n"
                f"If the task needs {target}, say so to the user, who can allow it for this run:\n"
                f"  podmentor runs allow {self.grant.run_id} {target}\n"
                "and try again then.  Trying other ways out is of no use: there are none.\n",
                code="egress_denied",
            )
        )

    async def _serve(self, handshake: Handshake, head: Head, target: Allow) -> None:
        try:
            await self._reach(handshake, head, target)
        except BaseException:
            handshake.abort()
            raise

    async def _reach(self, handshake: Handshake, head: Head, target: Allow) -> None:
        try:
            found = await self._connected(target)
            if isinstance(found, Deny):
                self._deny(handshake, found)
                return
        except (OSError, UnknownNameError, UpstreamProxyError) as error:  # TimeoutError too
            self.traffic.failures += 1
            status = 504 if isinstance(error, TimeoutError) else 502
            handshake.refuse(answer(status, f"{target.host}:{target.port} {_reason(error)}", code="unreachable"))
            return
        await self._join(handshake, head, target, *found)

    async def _connected(self, target: Allow) -> tuple[socket.socket, bytes] | Deny:
        """A connection to the host, and what it has sent already."""
        seconds = self._limits.connect_seconds
        upstream = self._uplink.proxy_for(target.host)
        if upstream is None:
            addresses = await self._addresses(target, RESOLVE_SECONDS)
            if isinstance(addresses, Deny):
                return addresses
            return await connect(addresses, target.port, seconds=seconds), b""
        # The upstream proxy looks the name up itself, and is the one to refuse what it must not lead to.  A name that
        # leads to an internal address for us too is refused here; many networks with a proxy know no names outside.
        with contextlib.suppress(OSError, UnknownNameError):  # TimeoutError too
            addresses = await self._addresses(target, LOOK_SECONDS)
            if isinstance(addresses, Deny):
                return addresses
        return await connect_through(upstream, target.host, target.port, resolver=self._resolver, seconds=seconds)

    async def _addresses(self, target: Allow, seconds: float) -> list[Address] | Deny:
        """Where the host may be connected to."""
        literal = as_address(target.host)
        if literal is not None:
            found = [literal]
        else:
            async with self._lookups, asyncio.timeout(seconds):
                found = await self._resolver.resolve(target.host)
        refusals = {
            address: self._rules.address_refusal(address, target.port, own=is_own(unmapped(address)))
            for address in found
        }
        allowed = [unmapped(address) for address in found if refusals[address] is None]
        reason = next((refusal for refusal in refusals.values() if refusal is not None), "it has no address")
        return allowed or Deny(target.host, target.port, reason)

    async def _join(
        self, handshake: Handshake, head: Head, target: Allow, sock: socket.socket, received: bytes
    ) -> None:
        tunnel = handshake.tunnel
        server = tunnel.server if isinstance(head, Connect) else Paced(tunnel.server, self._pace)
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, sock=sock)
        except BaseException:
            sock.close()
            raise
        assert tunnel.server.transport is not None
        if not handshake.alive:
            tunnel.server.transport.abort()
            return
        self.traffic.requests += 1
        self._tunnels.add(tunnel)
        tunnel.on_end = lambda: self._ended(tunnel, target)
        match head:
            case Connect():
                handshake.join(b"HTTP/1.1 200 Connection established\r\n\r\n")
            case Request():
                tunnel.client.filter = head.body
                tunnel.server.filter, tunnel.server.last = AnswerFilter(head.method), True
                tunnel.server.transport.write(head.render())
                handshake.join(b"", pace=self._pace)
        if received:
            server.data_received(received)

    def _ended(self, tunnel: Tunnel, target: Allow) -> None:
        self._tunnels.discard(tunnel)
        up, down = tunnel.client.count, tunnel.server.count
        self.traffic.bytes_up += up
        self.traffic.bytes_down += down
        self._report_all(self._aggregator.ended(target.host, target.port, up=up, down=down, now=time.monotonic()))


def _reason(error: BaseException) -> str:
    """Why a host that is allowed could not be reached."""
    match error:
        case UpstreamProxyError():
            return f"could not be reached: {error}"
        case UnknownNameError():
            return "is not known: there is no such name"
        case TimeoutError():
            return "did not answer in time"
        case ConnectionRefusedError():
            return "refused the connection"
        case _:
            return "could not be reached"
