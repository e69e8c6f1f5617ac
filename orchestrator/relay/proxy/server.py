"""One run's egress proxy, on the run's own Unix socket.

It looks names up itself, checks every address that comes out, and connects to one of those addresses, so that no second
look-up can lead elsewhere.  What flows through a tunnel is not looked at.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.config.hosts import Address, as_address
from orchestrator.contract.egress import EgressGrant, EgressReport
from orchestrator.contract.gateway import DoorTotals
from orchestrator.relay.gateway.upstream import Limits
from orchestrator.relay.pace import Pace, Paced
from orchestrator.relay.proxy.aggregate import Tally
from orchestrator.relay.proxy.connect import connect, is_own
from orchestrator.relay.proxy.handshake import Shut, Visitor
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.request import Connect, Head, Request
from orchestrator.relay.proxy.http1.response import AnswerFilter, answer
from orchestrator.relay.proxy.resolver import Resolver, UnknownNameError
from orchestrator.relay.proxy.rules import Allow, Deny, Rules, unmapped
from orchestrator.relay.proxy.tunnel import Tunnel
from orchestrator.relay.sockets import Listener, listen
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

RESOLVE_SECONDS: Final = 15.0
LOOKUPS: Final = 4
"""At the same time, for one run: names that take long must not keep others waiting."""
TURNED_AWAY: Final = 16
"""Connections over the limit that are told so at the same time; those beyond are closed without a word, since each that
is told stays for a moment and takes one of the descriptors that all runs share."""


@dataclass(slots=True, kw_only=True)
class Flow:
    """Counts of one run."""

    connections: int = 0
    """Joined."""
    denials: int = 0
    failures: int = 0
    """Allowed, but the host could not be reached; or the request could not be understood."""
    bytes_up: int = 0
    bytes_down: int = 0


class RunProxy:
    """Serves one grant until ``aclose``.  ``report`` is told what is to be reported."""

    def __init__(
        self, grant: EgressGrant, *, resolver: Resolver, limits: Limits, report: Callable[[EgressReport], None]
    ) -> None:
        self.grant = grant
        self.flow = Flow()
        self._arrived = 0
        self._rules = Rules.of(grant.rules)
        self._resolver = resolver
        self._limits = limits
        self._report = report
        self._tally = Tally(grant.run_id)
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._pace = Pace()
        self._tasks = TaskOwner(f"proxy {grant.run_id[:8]}")
        self._visitors: set[Visitor] = set()
        self._tunnels: set[Tunnel] = set()
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen at the grant's socket.  Raises: OSError."""
        listener = await asyncio.to_thread(listen, self.grant.socket_path, backlog=self._limits.connections)
        server = await asyncio.get_running_loop().create_unix_server(self._visitor, sock=listener.sock)
        await self._stop_listening()
        self._listener, self._server = listener, server

    async def replace(self, grant: EgressGrant) -> None:
        """Serve ``grant`` from the next connection on; those that are joined go on.  Raises: OSError."""
        before = (self.grant, self._rules)
        self.grant, self._rules = grant, Rules.of(grant.rules)
        listener = self._listener
        try:
            if listener is None or listener.path != grant.socket_path or not await asyncio.to_thread(listener.in_place):
                await self.open()
        except OSError:
            self.grant, self._rules = before
            raise

    async def aclose(self) -> None:
        """Stop listening, remove the socket, cut what is under way, report what was not reported yet."""
        await self._stop_listening()
        for visitor in list(self._visitors):
            visitor.abort()
        for tunnel in list(self._tunnels):
            tunnel.abort()
        await self._tasks.aclose(grace=1.0)
        await asyncio.sleep(0)  # the ends of connections that were cut are told by the loop's next turn
        self._tell(self._tally.close())

    def tell_due(self) -> None:
        """Report the counts that are due."""
        self._tell(self._tally.due(time.monotonic()))

    def totals(self) -> DoorTotals:
        """Its counts; ``connections`` are those of the run, ``requests`` those that were joined to a host."""
        flow, visitors = self.flow, len(self._visitors)
        under_way = sum(tunnel.client.count for tunnel in self._tunnels), sum(t.server.count for t in self._tunnels)
        return DoorTotals(
            open=visitors + len(self._tunnels),
            connections=self._arrived,
            requests=flow.connections,
            refusals=flow.denials,
            failures=flow.failures,
            bytes_up=flow.bytes_up + under_way[0],
            bytes_down=flow.bytes_down + under_way[1],
        )

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            await asyncio.to_thread(self._listener.remove)

    def _tell(self, reports: Iterable[EgressReport]) -> None:
        for report in reports:
            self._report(report)

    # --- one connection ----------------------------------------------------------------------------------------------

    def _visitor(self) -> asyncio.Protocol:
        here = len(self._visitors) + len(self._tunnels)
        if here >= self._limits.connections + TURNED_AWAY:
            return Shut()
        tunnel = Tunnel(idle_seconds=self._limits.idle_seconds, on_end=lambda: self._tunnels.discard(tunnel))
        visitor = Visitor(tunnel, on_head=self._head_came, on_error=self._misread, on_gone=self._visitors.discard)
        if here >= self._limits.connections:
            visitor.refusal = answer(503, "too many connections at once; close some", code="too_many_connections")
        self._visitors.add(visitor)
        self._arrived += 1
        return visitor

    def _misread(self, visitor: Visitor, error: WireError) -> None:
        self.flow.failures += 1
        visitor.refuse(answer(error.status, error.message, code="request_refused"))

    def _head_came(self, visitor: Visitor, head: Head) -> None:
        decision = self._rules.decide(head.host, head.port)
        if isinstance(decision, Deny):
            self._deny(visitor, decision)
        else:
            self._tasks.spawn(self._serve(visitor, head, decision), name="connect")

    def _deny(self, visitor: Visitor, denial: Deny) -> None:
        self.flow.denials += 1
        self._tell(self._tally.denied(denial.host, denial.port, denial.reason, time.monotonic()))
        target = f"[{denial.host}]:{denial.port}" if ":" in denial.host else f"{denial.host}:{denial.port}"
        visitor.refuse(
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

    async def _serve(self, visitor: Visitor, head: Head, target: Allow) -> None:
        try:
            await self._bring(visitor, head, target)
        except BaseException:
            visitor.abort()
            raise

    async def _bring(self, visitor: Visitor, head: Head, target: Allow) -> None:
        try:
            addresses = await self._addresses(target)
            if isinstance(addresses, Deny):
                self._deny(visitor, addresses)
                return
            sock = await connect(addresses, target.port, seconds=self._limits.connect_seconds)
        except (OSError, UnknownNameError) as error:  # TimeoutError too
            self.flow.failures += 1
            status = 504 if isinstance(error, TimeoutError) else 502
            visitor.refuse(answer(status, f"{target.host}:{target.port} {_why(error)}", code="unreachable"))
            return
        await self._join(visitor, head, target, sock)

    async def _addresses(self, target: Allow) -> list[Address] | Deny:
        """Where the host may be connected to."""
        literal = as_address(target.host)
        if literal is not None:
            found = [literal]
        else:
            async with self._lookups, asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolver.resolve(target.host)
        refusals = {
            address: self._rules.address_refusal(address, target.port, own=is_own(unmapped(address)))
            for address in found
        }
        allowed = [unmapped(address) for address in found if refusals[address] is None]
        reason = next((refusal for refusal in refusals.values() if refusal is not None), "it has no address")
        return allowed or Deny(target.host, target.port, reason)

    async def _join(self, visitor: Visitor, head: Head, target: Allow, sock: socket.socket) -> None:
        tunnel = visitor.tunnel
        server = tunnel.server if isinstance(head, Connect) else Paced(tunnel.server, self._pace)
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, sock=sock)
        except BaseException:
            sock.close()
            raise
        assert tunnel.server.transport is not None
        if not visitor.alive:
            tunnel.server.transport.abort()
            return
        self.flow.connections += 1
        self._tunnels.add(tunnel)
        tunnel.on_end = lambda: self._ended(tunnel, target)
        match head:
            case Connect():
                visitor.join(b"HTTP/1.1 200 Connection established\r\n\r\n")
            case Request():
                tunnel.client.filter = head.body
                tunnel.server.filter, tunnel.server.last = AnswerFilter(head.method), True
                tunnel.server.transport.write(head.render())
                visitor.join(b"", pace=self._pace)

    def _ended(self, tunnel: Tunnel, target: Allow) -> None:
        self._tunnels.discard(tunnel)
        up, down = tunnel.client.count, tunnel.server.count
        self.flow.bytes_up += up
        self.flow.bytes_down += down
        self._tell(self._tally.ended(target.host, target.port, up=up, down=down, now=time.monotonic()))


def _why(error: BaseException) -> str:
    """Why a host that is allowed could not be reached."""
    match error:
        case UnknownNameError():
            return "is not known: there is no such name"
        case TimeoutError():
            return "did not answer in time"
        case ConnectionRefusedError():
            return "refused the connection"
        case _:
            return "could not be reached"
