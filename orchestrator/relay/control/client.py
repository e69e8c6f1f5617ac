"""Finds or starts the relay process (which outlives us), keeps it in step with the grants, ends or detaches from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.contract.egress import EgressGrant, EgressListener, Network
from orchestrator.contract.gateway import GatewayGrant, RelayTotals
from orchestrator.errors import InvalidRequestError, PodmentorError, RelayRefusedError, SandboxError
from orchestrator.relay.control.connection import ConnectionLostError, RelayConnection
from orchestrator.relay.control.reports import ReportReceiver
from orchestrator.relay.protocol import (
    check_egress,
    check_grant,
    grant_to_wire,
    network_to_wire,
    socket_name,
    totals_from_wire,
)
from orchestrator.system.processes import WatchedProcess
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
"""A cold start reads all of aiohttp from disk, on machines that may be busy."""
ATTEMPTS: Final = 3
END_LADDER: Final = ((None, 3.0), (signal.SIGTERM, 2.5), (signal.SIGKILL, 5.0))
"""What is sent after ``shutdown``, and how long its effect is waited for."""
RETRY_SECONDS: Final = (0.05, 5.0)
"""First and longest pause between attempts to bring a lost relay back."""
ROOT: Final = Path(__file__).resolve().parents[3]
"""Where the packages lie, in a checkout as in site-packages."""
READY_FD: Final = 3


class RelayProcess:
    """``Relay`` of the contract, by a process that outlives the service.

    ``runtime_dir``: holds the control socket.  ``log_path``: the relay's log.  ``python``: absolute path of the
    interpreter.  ``linger``: seconds that a relay without grants waits for a service.  ``network``: how
    it is to reach the internet; None leaves a relay as it is.  ``options``: further arguments of the relay's command
    line.  ``on_restart`` gets the runs whose grants were given to a new relay after theirs died; their streams of that
    moment were cut.
    """

    def __init__(
        self,
        *,
        runtime_dir: Path,
        log_path: Path,
        python: str = sys.executable,
        linger: float = 10.0,
        network: Network | None = None,
        options: tuple[str, ...] = (),
        on_restart: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        self._control = runtime_dir / socket_name()
        self._log_path = log_path
        self._python = python
        self._options = ("--linger", str(linger), *options)
        self._network = network
        self._on_restart = on_restart
        self._grants: dict[tuple[str, str], GatewayGrant | EgressGrant] = {}
        """By operation and run."""
        self._receiver: ReportReceiver | None = None
        self._tasks = TaskOwner("relay-client")
        self._lock = asyncio.Lock()
        self._connection: RelayConnection | None = None
        self._process: WatchedProcess | None = None
        self._children: dict[int, WatchedProcess] = {}
        self._starting: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """The relay's process id while we are connected."""
        return self._process.pid if self._connection is not None and self._process is not None else None

    async def start(self) -> None:
        """Connect to the relay that an earlier service left, or start one.

        Raises: SandboxError when neither works; the relay's log tells more.
        """
        await self._ensure()

    def listen(self, listener: EgressListener) -> None:
        """Call ``listener`` with every report of the proxies; to be called before ``start``."""
        self._receiver = ReportReceiver(listener, self._tasks)

    async def grant(self, grant: GatewayGrant) -> None:
        """Open the run's gateway, or replace the run's grant.

        Raises: InvalidRequestError for a grant that cannot be honoured, SandboxError when its socket cannot be made.
        """
        check_grant(grant)
        await self._open("grant", grant)

    async def grant_egress(self, grant: EgressGrant) -> None:
        """Open the run's egress proxy, or replace its rules.  Raises as ``grant`` does."""
        check_egress(grant)
        await self._open("grant_egress", grant)

    async def _open(self, op: str, grant: GatewayGrant | EgressGrant) -> None:
        place = (op, grant.run_id)
        previous = self._grants.get(place)
        self._grants[place] = grant
        try:
            await self._call(op, grant=grant_to_wire(grant))
        except PodmentorError:
            if self._grants.get(place) is grant:
                del self._grants[place]
                if previous is not None:
                    self._grants[place] = previous
            raise

    async def revoke(self, run_id: str) -> None:
        """Close and remove the run's sockets and cut what goes through them; unknown ids are fine."""
        grants = [found for op in ("grant", "grant_egress") if (found := self._grants.pop((op, run_id), None))]
        answer = await self._call("revoke", spawn=False, run_id=run_id)
        if answer is None:
            for grant in grants:  # a dead relay left them
                await asyncio.to_thread(grant.socket_path.unlink, missing_ok=True)
        elif self._receiver is not None and answer["reports"]:
            await self._receiver.settled(answer["relay"], answer["reports"])

    async def granted(self) -> set[str]:
        """The runs that have a socket now, those of an earlier service included."""
        answer = await self._call("granted")
        return set() if answer is None else set(answer["runs"])

    async def totals(self) -> RelayTotals | None:
        """What has gone through the relay since its start; None: there is none."""
        answer = await self._call("totals", spawn=False)
        return None if answer is None else totals_from_wire(answer["totals"])

    async def aclose(self, *, keep: bool) -> None:
        """Detach from the relay (``keep``) or end it; safe to call twice."""
        self._closing = True
        if self._starting is not None:  # a child that is just being started must not slip away
            await asyncio.wait({self._starting}, timeout=START_SECONDS)
        try:
            if not keep:
                await self._end()
        finally:
            if self._connection is not None:
                await self._connection.aclose()
                self._connection = None
            await self._tasks.aclose()
            for process in {*self._children.values(), *([self._process] if self._process else [])}:
                process.close()
            self._children.clear()
            self._process = None

    async def _end(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._call("shutdown", spawn=False)
        process = self._process
        for number, seconds in END_LADDER:
            if process is None or process.ended:
                break
            if number is not None:
                log.warning("relay %d is sent %s", process.pid, number.name)
                process.signal(number)
            await process.wait(seconds)

    async def _call(self, op: str, *, spawn: bool = True, **fields: Any) -> dict[str, Any] | None:
        """The relay's answer; None when there is no relay and none is to be started."""
        for _ in range(ATTEMPTS):
            connection = await self._ensure(spawn=spawn)
            if connection is None:
                return None
            try:
                return await connection.call(op, **fields)
            except ConnectionLostError:
                # The writer may notice before the reader has; asking the same connection again is no use.
                self._lost(connection)
                if op == "shutdown":
                    return None
        raise SandboxError(f"the relay ends again and again; see {self._log_path}")

    async def _ensure(self, *, spawn: bool = True) -> RelayConnection | None:
        """A connection to a relay that has all our grants."""
        async with self._lock:
            if self._connection is not None:
                return self._connection
            for _ in range(ATTEMPTS):
                connection = await RelayConnection.open(
                    self._control, owner=self._tasks, on_lost=self._lost, on_push=self._pushed
                )
                if connection is None:
                    if not spawn or self._closing:
                        return None
                    if self._starting is None or self._starting.done():  # else a cancelled caller left it to us
                        self._starting = self._tasks.spawn(self._start_process(), name="start")
                    await asyncio.shield(self._starting)
                    continue
                try:
                    self._watch(connection.pid)
                    await self._configure(connection)
                    await self._send_grants(connection)
                    if self._receiver is not None:
                        await connection.call("subscribe")
                except (ConnectionLostError, ProcessLookupError):
                    await connection.aclose()
                    continue
                except BaseException:
                    await connection.aclose()
                    raise
                if not connection.lost:
                    self._connection = connection
                    return connection
            raise SandboxError(f"the relay could not be started; see {self._log_path}")

    def _watch(self, pid: int) -> None:
        if self._process is None or self._process.pid != pid or self._process.ended:
            if self._process is not None and not self._process.child:
                self._process.close()
            self._process = self._children.get(pid) or WatchedProcess(pid, child=False)

    async def _start_process(self) -> None:
        """Start a relay and keep its handle, even when the caller is cancelled meanwhile."""
        if self._process is not None:
            # The old one must be gone before another may have the control socket.
            await self._process.wait(3.0)
        arguments = ["--control", str(self._control.absolute()), "--log", str(self._log_path.absolute())]
        try:
            pid, ready = await asyncio.to_thread(
                start_detached,
                self._python,
                [*arguments, *self._options],
                log_path=self._log_path,
                ready_seconds=START_SECONDS,
            )
        except OSError as error:
            log.error("the relay could not be started: %s", error)  # noqa: TRY400  # the traceback says no more
            return
        child = WatchedProcess(pid, child=True)
        self._children = {number: known for number, known in self._children.items() if not known.ended}
        self._children[pid] = child
        if not ready:
            log.warning("relay %d did not become ready", pid)
            child.signal(signal.SIGKILL)
            await child.wait(5.0)

    def _live_grants(self) -> list[GatewayGrant | EgressGrant]:
        now = time.time()
        self._grants = {place: grant for place, grant in self._grants.items() if grant.expires_at > now}
        return list(self._grants.values())

    async def _configure(self, connection: RelayConnection) -> None:
        if self._network is not None:
            try:
                await connection.call("configure", network=network_to_wire(self._network))
            except InvalidRequestError as error:
                raise RelayRefusedError(error.message) from None

    async def _send_grants(self, connection: RelayConnection) -> None:
        for grant in self._live_grants():
            op = "grant" if isinstance(grant, GatewayGrant) else "grant_egress"
            try:
                await connection.call(op, grant=grant_to_wire(grant))
            except (InvalidRequestError, RelayRefusedError) as error:
                # Its control directory may be gone with its run; the others must not suffer from that.
                log.warning("run %s has no %s any more: %s", grant.run_id, op, error.message)

    def _pushed(self, connection: RelayConnection, message: dict[str, Any]) -> None:
        async def taken(number: int) -> None:
            with contextlib.suppress(ConnectionLostError, SandboxError):
                await connection.call("taken", number=number)

        if self._receiver is not None:
            self._receiver.push(message, taken)

    def _lost(self, connection: RelayConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if not self._closing:
            log.warning("the relay (process %d) is gone", connection.pid)
            if self._live_grants():
                self._tasks.spawn(self._recover(), name="recover")

    async def _recover(self) -> None:
        """Bring the relay back for as long as there are grants that need it."""
        pause, longest = RETRY_SECONDS
        while not self._closing and (grants := self._live_grants()):
            try:
                await self._ensure()
            except SandboxError as error:
                log.error("%s", error.message)  # noqa: TRY400  # expected, and tried again
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
                continue
            runs = frozenset(grant.run_id for grant in grants)
            log.warning("a relay serves again; grants renewed: %d", len(runs))
            if self._on_restart is not None:
                self._on_restart(runs)
            return


def start_detached(python: str, arguments: Sequence[str], *, log_path: Path, ready_seconds: float) -> tuple[int, bool]:
    """Start ``python -m orchestrator.relay``; (pid, whether it said that it is ready).  Blocks: use a thread.

    It gets a session of its own, nothing of our environment and none of our descriptors; ``posix_spawn``, because the
    classes of ``subprocess`` and asyncio end or complain about a child that is left running.
    Raises: OSError.
    """
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawn(
            python,
            [python, "-P", "-m", "orchestrator.relay", "--ready-fd", str(READY_FD), *arguments],
            {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, writer, READY_FD),
            ],
            setsid=True,
            setsigmask=[],
        )
        os.close(writer)
        writer = -1
        # Its end closes the pipe too, so this wakes up either way.
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        ready = poll.poll(ready_seconds * 1000)
        return pid, bool(ready) and bool(os.read(reader, 16))
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
