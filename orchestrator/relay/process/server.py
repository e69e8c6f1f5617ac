"""The relay process at work: a gateway or a proxy for each grant, and the control socket of the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeVar

import aiohttp

from orchestrator.contract.egress import EgressGrant
from orchestrator.contract.gateway import GatewayGrant, RelayTotals, Traffic
from orchestrator.errors import InvalidRequestError, PodmentorError
from orchestrator.relay.gateway.server import RunGateway
from orchestrator.relay.gateway.upstream import open_session
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from orchestrator.relay.process.reports import ReportPublisher
from orchestrator.relay.protocol import (
    MAX_LINE,
    VERSION,
    decode,
    egress_from_wire,
    encode,
    grant_from_wire,
    network_from_wire,
    totals_to_wire,
)
from orchestrator.relay.proxy.resolver import Resolver, SystemResolver
from orchestrator.relay.proxy.server import RunProxy
from orchestrator.relay.sockets import Listener
from orchestrator.system.peers import same_user
from orchestrator.system.tasks import TaskOwner

Grant = TypeVar("Grant", GatewayGrant, EgressGrant)
log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 1.8
"""Bound on the whole closing; what is not done by then ends with the process."""
RECHECK_SECONDS: Final = 30.0
"""Longest time between two looks at what is due."""
REPORTS_LINGER: Final = 3600.0
"""How long reports are kept for a service that does not come back."""
HELLO_SECONDS: Final = 10.0
"""What a controller has to say which version it speaks."""
WRITE_SECONDS: Final = 10.0


class RelayServer:
    """The grants, their gateways and proxies, and the control socket."""

    def __init__(
        self, *, linger: float, limits: Limits, resolver: Resolver | None = None, uplink: Uplink | None = None
    ) -> None:
        self._linger = linger
        self._limits = limits
        self._uplink = uplink or Uplink()
        self._resolver = resolver or SystemResolver()
        self._gateways: dict[str, RunGateway] = {}
        self._proxies: dict[str, RunProxy] = {}
        self._ended = RelayTotals(gateway=Traffic(), egress=Traffic())
        """Counts of runs that are over."""
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks = TaskOwner("relay")
        self._reports = ReportPublisher(self._tasks)
        self._controllers = 0
        self._session: aiohttp.ClientSession | None = None

    def secrets(self) -> list[str]:
        """Every secret that the relay has now, for the log to leave out."""
        keys = [key for gateway in self._gateways.values() if (key := gateway.grant.api_key) is not None]
        return [*keys, *self._uplink.secrets()]

    def stop(self) -> None:
        """Make ``serve`` return soon."""
        self._stop.set()
        self._changed.set()

    async def serve(self, listener: Listener, ready_fd: int | None) -> None:
        """Serve until stopped or without work; everything is closed and removed on return."""
        self._session = open_session(self._limits)
        server = await asyncio.start_unix_server(self._accept, sock=listener.sock, limit=MAX_LINE)
        log.info("relay %d ready, protocol %d", os.getpid(), VERSION)
        if ready_fd is not None:
            with contextlib.suppress(OSError):  # whoever started us may be gone already
                os.write(ready_fd, b"ready\n")
                os.close(ready_fd)
        try:
            await self._keep_time()
        finally:
            server.close()
            listener.remove()
            await self._close()

    async def _close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._tasks.aclose(grace=0.5)
                await asyncio.gather(*(server.aclose() for server in self._servers()), return_exceptions=True)
                if self._session is not None:
                    await self._session.close()
        log.info("relay %d ended", os.getpid())

    async def _keep_time(self) -> None:
        """End grants at their time, and the process when there is nothing to do."""
        while not self._stop.is_set():
            self._changed.clear()
            now = time.monotonic()
            for run_id in {server.grant.run_id for server in self._servers() if server.grant.expires_at <= now}:
                await self._revoke(run_id, expired_at=now)
            for proxy in self._proxies.values():
                proxy.report_due()
            if self._stop.is_set():
                return
            wait = min([server.grant.expires_at - now for server in self._servers()], default=RECHECK_SECONDS)
            timeout = self._patience() if self._idle() else min(max(wait, 0.0), RECHECK_SECONDS)
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                if self._idle():
                    log.info("no grants and nobody connected for %.1f s", timeout)
                    return

    def _servers(self) -> list[RunGateway | RunProxy]:
        return [*self._gateways.values(), *self._proxies.values()]

    def _patience(self) -> float:
        """Seconds to stay without work: longer while reports wait for a service that had asked for them."""
        return max(self._linger, REPORTS_LINGER) if self._reports.missed else self._linger

    def _idle(self) -> bool:
        return not self._gateways and not self._proxies and self._controllers == 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._control(reader, writer), name="control")

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._controllers += 1
        try:
            if same_user(writer.get_extra_info("socket")):
                async with asyncio.timeout(HELLO_SECONDS):
                    welcome = await self._hello(reader, writer)
                if welcome:
                    # Between requests the service may be silent for as long as it lives.
                    while line := await reader.readline():
                        await self._reply(line, writer)
            else:
                log.warning("a controller of another user was turned away")
        except (OSError, ValueError, TimeoutError) as error:  # ValueError: a line over the limit
            log.warning("a controller was dropped: %s", type(error).__name__)
        finally:
            self._controllers -= 1
            self._changed.set()
            writer.close()

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            message = decode(await reader.readline())
        except InvalidRequestError:
            return False
        answer: dict[str, Any] = {"id": message.get("id"), "version": VERSION, "pid": os.getpid()}
        good = message.get("op") == "hello" and message.get("version") == VERSION
        if good:
            answer["ok"] = True
        else:
            answer |= {
                "ok": False,
                "code": "wrong_version",
                "error": f"relay {os.getpid()} speaks version {VERSION} of the protocol, the service another; "
                f"it ends with its runs, or by: kill {os.getpid()}",
            }
        await _send(writer, answer)
        return good

    async def _reply(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        answer: dict[str, Any] = {"id": None}
        try:
            message = decode(line)
            answer["id"] = message.get("id")
            answer |= {"ok": True, **await self._run(message, writer)}
        except PodmentorError as error:
            answer |= {"ok": False, "code": error.code, "error": error.message}
        except OSError as error:
            answer |= {"ok": False, "code": "socket_failed", "error": f"the run's socket: {error.strerror or error}"}
        except Exception as error:  # noqa: BLE001  # the message might quote the request, so only its kind is logged and answered
            log.error("a request of the controller failed: %s", type(error).__name__)  # noqa: TRY400
            answer |= {"ok": False, "code": "internal", "error": type(error).__name__}
        await _send(writer, answer)

    async def _run(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> dict[str, Any]:
        match message.get("op"):
            case "configure":
                await asyncio.to_thread(self._uplink.configure, network_from_wire(message.get("network")))
                return {}
            case "grant":
                await self._grant(grant_from_wire(message.get("grant")))
                return {}
            case "grant_egress":
                await self._grant_egress(egress_from_wire(message.get("grant")))
                return {}
            case "revoke":
                await self._revoke(str(message.get("run_id")))
                return {"relay": self._reports.relay_id, "reports": self._reports.waiting_for}
            case "granted":
                return {"runs": sorted({server.grant.run_id for server in self._servers()})}
            case "totals":
                return {"totals": totals_to_wire(self._totals())}
            case "subscribe":
                self._reports.subscribe(writer)
                return {"relay": self._reports.relay_id}
            case "taken":
                self._reports.taken(int(message.get("number", 0)))
                return {}
            case "shutdown":
                self.stop()
                return {}
            case _:
                raise InvalidRequestError("no such op")

    async def _grant(self, grant: GatewayGrant) -> None:
        assert self._session is not None
        grant = by_own_clock(grant)
        async with self._lock:
            if (gateway := self._gateways.get(grant.run_id)) is not None:
                await gateway.replace(grant)
            else:
                gateway = RunGateway(grant, session=self._session, limits=self._limits, uplink=self._uplink)
                await gateway.open()
                self._gateways[grant.run_id] = gateway
                log.info("run %s: granted", grant.run_id)
        self._changed.set()

    async def _grant_egress(self, grant: EgressGrant) -> None:
        grant = by_own_clock(grant)
        async with self._lock:
            if (proxy := self._proxies.get(grant.run_id)) is not None:
                await proxy.replace(grant)
            else:
                proxy = RunProxy(
                    grant, resolver=self._resolver, limits=self._limits, report=self._reports.put, uplink=self._uplink
                )
                await proxy.open()
                self._proxies[grant.run_id] = proxy
            log.info("run %s: egress to %d host patterns", grant.run_id, len(grant.rules))
        self._changed.set()

    def _totals(self) -> RelayTotals:
        return RelayTotals(
            gateway=total([self._ended.gateway, *(gateway.totals() for gateway in self._gateways.values())]),
            egress=total([self._ended.egress, *(proxy.totals() for proxy in self._proxies.values())]),
        )

    async def _revoke(self, run_id: str, *, expired_at: float | None = None) -> None:
        """Close what the run has; with ``expired_at``, only if one of its grants has ended by then."""
        async with self._lock:
            gateway, proxy = self._gateways.get(run_id), self._proxies.get(run_id)
            servers = [server for server in (gateway, proxy) if server is not None]
            if servers and expired_at is not None:
                if all(server.grant.expires_at > expired_at for server in servers):
                    return  # renewed in the meantime
                log.info("run %s: the grant's time is over", run_id)
            for server in servers:
                await server.aclose()
            if gateway is not None:
                del self._gateways[run_id]
                counts = replace(gateway.totals(), open=0)
                self._ended = replace(self._ended, gateway=total([self._ended.gateway, counts]))
                log.info("run %s: gateway ended, %s", run_id, asdict(counts))
            if proxy is not None:
                del self._proxies[run_id]
                counts = replace(proxy.totals(), open=0)
                self._ended = replace(self._ended, egress=total([self._ended.egress, counts]))
                log.info("run %s: egress ended, %s", run_id, asdict(counts))
        self._changed.set()


def total(parts: Iterable[Traffic]) -> Traffic:
    """The counts of several gateways or proxies together."""
    counts = list(parts)
    return Traffic(**{field.name: sum(getattr(part, field.name) for part in counts) for field in fields(Traffic)})


def by_own_clock(grant: Grant) -> Grant:
    """The grant with its end on the clock of this process (``time.monotonic``), which nobody sets: a run must not lose
    its egress when the machine's time is put right.  Raises InvalidRequestError: it has expired."""
    left = grant.expires_at - time.time()
    if left <= 0:
        raise InvalidRequestError("the grant has expired already")
    return replace(grant, expires_at=time.monotonic() + left)


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(encode(message))
    async with asyncio.timeout(WRITE_SECONDS):
        await writer.drain()
