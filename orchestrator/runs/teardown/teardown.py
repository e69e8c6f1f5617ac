"""How a run's sandbox is ended, and what is then taken away.  Every wait in here has a limit.

The ladder: SIGINT (the CLI may report), two seconds later SIGKILL for all of the container, by the kernel and without
Podman: whatever state that is in, nothing of the agent lives on.  What follows is bookkeeping and may take longer: the
container is removed by Podman, sockets, directories and the account's lease go.  What cannot be removed does not keep
the run from ending: it is logged, tried again with pauses, and swept at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal

from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.contract.gateway import Relay
from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import FoundSandbox, Runtime, SandboxExit
from orchestrator.contract.workspace import Workspaces
from orchestrator.errors import PodmentorError, SandboxError, SandboxGoneError
from orchestrator.events import Error
from orchestrator.runs.auth_container import LOGIN, AuthContainers
from orchestrator.runs.storage.store import Store, StoredRun
from orchestrator.runs.teardown.outcome import about_subscription
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

INTERRUPT_SECONDS = 2.0
"""What a CLI has to report after SIGINT, before SIGKILL."""
KILL_SECONDS = 10.0
"""What conmon has, once the processes are killed, to write the rest of the log; then it is removed by force."""
TEARDOWN_SECONDS = 30.0
"""For each of the things that are taken away."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 120.0
"""Seconds between two tries to remove what could not be removed."""


class Teardown:
    """Ends sandboxes, and takes away what runs had: at their end, later, or at the start of the next service."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        relay: Relay,
        workspaces: Workspaces,
        store: Store,
        homes: SubscriptionHomes,
        auth_containers: AuthContainers,
    ) -> None:
        self._runtime = runtime
        self._relay = relay
        self._workspaces = workspaces
        self._store = store
        self._homes = homes
        self._auth_containers = auth_containers
        self._tasks = TaskOwner("teardown")
        self._left: dict[str, str | None] = {}
        """By run what is still to be removed: its sandbox id."""
        self._retrying: asyncio.Task[None] | None = None

    async def end_sandbox(self, container_id: str, ended: asyncio.Task[SandboxExit], *, polite: bool) -> None:
        """End it: ask first when ``polite``, then kill the whole container, since a CLI leaves its tools alive.

        ``ended`` is done when the container has ended and its log is complete.  When this returns no process is left;
        only the end of the log may be unknown, then ``ended`` is not done.
        """
        if polite:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + INTERRUPT_SECONDS
            await self._signal(container_id, "INT")
            await asyncio.wait({ended}, timeout=max(0.0, deadline - loop.time()))
        if not ended.done():
            await self.kill(container_id)
            await asyncio.wait({ended}, timeout=KILL_SECONDS)
        if not ended.done():
            log.warning("container %s is dead, but its log does not come to an end: removed", container_id[:12])
            with suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(TEARDOWN_SECONDS):
                    await self._runtime.remove(container_id)
            await asyncio.wait({ended}, timeout=KILL_SECONDS)

    async def kill(self, container_id: str) -> None:
        """Kill all of a container, at once."""
        await self._signal(container_id, "KILL")

    async def _signal(self, container_id: str, signal: Literal["INT", "KILL"]) -> None:
        """Signal it; no more than a log entry when that fails, since the ladder goes on anyway."""
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await self._runtime.signal(container_id, signal)
        except SandboxError as error:
            log.warning("container %s did not get its SIG%s: %s", container_id[:12], signal, error.message)
        except TimeoutError:
            log.warning("container %s did not get its SIG%s in time", container_id[:12], signal)

    async def tear_down(
        self, run: StoredRun, *, container_id: str | None, revoke_grants: Callable[[], Awaitable[None]]
    ) -> None:
        """Take away container, grants, control directory and the account's lease, and record what was changed.

        Each is tried, whatever became of the others; what is still there then is logged and tried again later.
        """
        run_id, gone = run.record.run_id, True
        for what, step in (
            ("container", lambda: self._remove_container(run, container_id)),
            ("grants", revoke_grants),
            ("control directory", lambda: self._workspaces.remove_control_dir(run_id)),
            ("record of the changes", lambda: self._record_changes(run)),
            ("account", lambda: self._leave_account(run_id)),
        ):
            try:
                async with asyncio.timeout(TEARDOWN_SECONDS):
                    await step()
            except (PodmentorError, TimeoutError, OSError):
                log.exception("run %s: its %s could not be dealt with", run_id, what)
                gone = False
        if not gone:
            self._retry_later(run_id, run.record.sandbox_id)

    async def _remove_container(self, run: StoredRun, container_id: str | None) -> None:
        record = run.record
        if container_id is not None:
            with suppress(SandboxGoneError):
                await self._runtime.remove(container_id)
        elif record.started_at is not None:
            await self._runtime.remove_run(record.run_id, sandbox_id=record.sandbox_id)
        if record.sandbox_id is not None:
            await self._store.update_sandbox(record.sandbox_id, ended=True)

    async def _record_changes(self, run: StoredRun) -> None:
        """What the repo has where the agent changed something: the container is gone, and the next run not begun."""
        record = run.record
        if record.started_at is None or record.sandbox_id is None:
            return  # it never had a workspace
        mount = self._workspaces.mount_of(subagent_id=record.subagent_id, source=run.source_path, mode=record.workspace)
        await self._workspaces.run_ended(mount, run_id=record.run_id)

    async def _leave_account(self, run_id: str) -> None:
        if restored := await self._homes.leave(run_id):
            log.warning("run %s had left its account's login broken; put back: %s", run_id, ", ".join(restored))

    async def advised(self, error: Error, run_id: str, account: HomeKey) -> Error:
        """The run's error, with advice about ``account`` when the run has really used it; never fails."""
        try:
            used = run_id in await self._homes.leases()
        except (PodmentorError, OSError):
            return error
        return about_subscription(error, account) if used else error

    async def sweep(self, found: Mapping[str, FoundSandbox], unfinished: set[str]) -> Mapping[str, HomeKey]:
        """At a start: remove what belongs to none of the ``unfinished`` runs; the leases of those that do.

        ``found``: the containers that there are, by run.
        """
        for run_id, sandbox in found.items():
            if run_id not in unfinished and not (run_id.startswith(LOGIN) and sandbox.state == "running"):
                log.info("removing the container of the finished run %s", run_id)
                await self.remove(sandbox)
        for run_id in await self._workspaces.stale_control_dirs(unfinished):
            await self._workspaces.remove_control_dir(run_id)
        await self._auth_containers.sweep({run_id for run_id, sandbox in found.items() if sandbox.state == "running"})
        for run_id in await self._relay.granted() - unfinished:
            await self._relay.revoke(run_id)
        leases = await self._homes.leases()
        for run_id in leases.keys() - unfinished:
            await self._homes.leave(run_id)
        return leases

    async def remove(self, sandbox: FoundSandbox) -> None:
        """Remove what no run needs; one that cannot be removed does not keep the service from starting."""
        try:
            await self._runtime.remove(sandbox.container_id)
        except PodmentorError as error:
            log.warning("the container of run %s cannot be removed yet: %s", sandbox.run_id, error.message)
            self._retry_later(sandbox.run_id, sandbox.sandbox_id)

    async def clear_for_requeue(self, record: RunRecord) -> None:
        """Remove what there may be of a container whose making was cut short; the run will get another one.

        Raises StorageError.
        """
        try:
            await self._runtime.remove_run(record.run_id, sandbox_id=record.sandbox_id)
        except PodmentorError as error:
            log.warning("run %s: what a crash left of its container is still there: %s", record.run_id, error.message)
        await self._homes.leave(record.run_id)

    async def leftovers(self, unfinished: set[str]) -> list[str]:
        """What is there although it belongs to none of the ``unfinished`` runs: containers, control directories,
        gateways.  It is removed at the next start."""
        return [
            *(f"container of {found.run_id}" for found in await self._runtime.find() if found.run_id not in unfinished),
            *(f"control directory of {run_id}" for run_id in await self._workspaces.stale_control_dirs(unfinished)),
            *(f"gateway of {run_id}" for run_id in sorted(await self._relay.granted() - unfinished)),
        ]

    def _retry_later(self, run_id: str, sandbox_id: str | None) -> None:
        self._left[run_id] = sandbox_id
        if self._retrying is None or self._retrying.done():
            self._retrying = self._tasks.spawn(self._retry(), name="retry")

    async def _retry(self) -> None:
        pause = FIRST_PAUSE
        while self._left:
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)
            for run_id, sandbox_id in sorted(self._left.items()):
                if await self._gone(run_id, sandbox_id):
                    log.info("run %s: what was left of it is gone now", run_id)
                    self._left.pop(run_id, None)

    async def _gone(self, run_id: str, sandbox_id: str | None) -> bool:
        try:
            async with asyncio.timeout(TEARDOWN_SECONDS):
                await self._runtime.remove_run(run_id, sandbox_id=sandbox_id)
                await self._relay.revoke(run_id)
                await self._workspaces.remove_control_dir(run_id)
                await self._leave_account(run_id)
        except (PodmentorError, TimeoutError, OSError) as error:
            log.warning("run %s: something is still left of it: %s", run_id, error)
            return False
        return True

    async def aclose(self) -> None:
        """Stop trying; the next start sweeps."""
        await self._tasks.aclose()
