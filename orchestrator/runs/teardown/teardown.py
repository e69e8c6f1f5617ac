"""How a run's sandbox is ended, and what is then taken away.  Every wait in here has a limit.

The ladder: SIGINT (the CLI may report), two seconds later SIGKILL for all of the container, by the kernel and without
Podman: whatever state that is in, nothing of the agent lives on.  What follows is bookkeeping and may take longer: the
container is removed by Podman, sockets, directories and the account's lease go.  What cannot be removed does not keep
the run from ending: it is logged, tried again by the ``Sweeper``, and swept at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.sandbox import FoundSandbox, Runtime, SandboxExit
from orchestrator.errors import PodmentorError, SandboxError, SandboxGoneError
from orchestrator.runs.auth_container import LOGIN, Aside
from orchestrator.runs.changes import take_down
from orchestrator.runs.deps import Deps
from orchestrator.runs.storage.store import StoredRun
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


async def end_sandbox(runtime: Runtime, container_id: str, ended: asyncio.Task[SandboxExit], *, polite: bool) -> None:
    """End it: ask first when ``polite``, then kill the whole container, since a CLI leaves its tools alive.

    ``ended`` is done when the container has ended and its log is complete.  When this returns no process is left; only
    the end of the log may be unknown, then ``ended`` is not done.
    """
    if polite:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + INTERRUPT_SECONDS
        await _signal(runtime, container_id, "INT")
        await asyncio.wait({ended}, timeout=max(0.0, deadline - loop.time()))
    if not ended.done():
        await kill(runtime, container_id)
        await asyncio.wait({ended}, timeout=KILL_SECONDS)
    if not ended.done():
        log.warning("container %s is dead, but its log does not come to an end: removed", container_id[:12])
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(TEARDOWN_SECONDS):
                await runtime.remove(container_id)
        await asyncio.wait({ended}, timeout=KILL_SECONDS)


async def kill(runtime: Runtime, container_id: str) -> None:
    """Kill all of a container, at once."""
    await _signal(runtime, container_id, "KILL")


async def _signal(runtime: Runtime, container_id: str, signal: Literal["INT", "KILL"]) -> None:
    """Signal it; no more than a log entry when that fails, since the ladder goes on anyway."""
    try:
        async with asyncio.timeout(INTERRUPT_SECONDS):
            await runtime.signal(container_id, signal)
    except SandboxError as error:
        log.warning("container %s did not get its SIG%s: %s", container_id[:12], signal, error.message)
    except TimeoutError:
        log.warning("container %s did not get its SIG%s in time", container_id[:12], signal)


async def tear_down(
    run: StoredRun, deps: Deps, *, container_id: str | None, close_door: Callable[[], Awaitable[None]]
) -> bool:
    """Take away container, gateway, control directory and the account's lease, and record what was changed.

    Each is tried, whatever became of the others; False when something is still there, which is logged.
    """
    run_id, gone = run.record.run_id, True

    async def remember() -> None:
        if (await deps.store.run(run_id)).record.sandbox_id is not None:  # else it never had a workspace
            await take_down(run, deps)

    for what, step in (
        ("container", lambda: _remove_container(run, deps, container_id)),
        ("way out", close_door),
        ("control directory", lambda: deps.workspaces.remove_control_dir(run_id)),
        ("record of the changes", remember),
        ("account", lambda: leave_account(run_id, deps)),
    ):
        try:
            async with asyncio.timeout(TEARDOWN_SECONDS):
                await step()
        except (PodmentorError, TimeoutError, OSError):
            log.exception("run %s: the %s could not be seen to", run_id, what)
            gone = False
    return gone


async def _remove_container(run: StoredRun, deps: Deps, container_id: str | None) -> None:
    run_id = run.record.run_id
    sandbox_id = (await deps.store.run(run_id)).record.sandbox_id
    if container_id is not None:
        with suppress(SandboxGoneError):
            await deps.runtime.remove(container_id)
    elif run.record.started_at is not None:
        await deps.runtime.remove_run(run_id, sandbox_id=sandbox_id)
    if sandbox_id is not None:
        await deps.store.update_sandbox(sandbox_id, ended=True)


async def leave_account(run_id: str, deps: Deps) -> None:
    """Give the account back.  Raises StorageError."""
    if restored := await deps.homes.leave(run_id):
        log.warning("run %s had left its account's login broken; put back: %s", run_id, ", ".join(restored))


class Sweeper:
    """Tries again, with pauses, to remove what the end of a run could not; what is left then goes at the next start."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._tasks = TaskOwner("sweeper")
        self._left: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None

    async def sweep(self, boxes: Mapping[str, FoundSandbox], unfinished: set[str]) -> Mapping[str, HomeKey]:
        """At a start: remove what belongs to none of the ``unfinished`` runs; the leases of those that do."""
        deps = self._deps
        for run_id, box in boxes.items():
            if run_id not in unfinished and not (run_id.startswith(LOGIN) and box.state == "running"):
                log.info("removing the container of the finished run %s", run_id)
                await self.remove(box)
        for run_id in await deps.workspaces.stale_control_dirs(unfinished):
            await deps.workspaces.remove_control_dir(run_id)
        running = {run_id for run_id, box in boxes.items() if box.state == "running"}
        await Aside.of(deps.config, deps.paths, deps.runtime, deps.instance).sweep(running)
        for run_id in await deps.relay.granted() - unfinished:
            await deps.relay.revoke(run_id)
        leases = await deps.homes.leases()
        for run_id in leases.keys() - unfinished:
            await deps.homes.leave(run_id)
        return leases

    async def remove(self, box: FoundSandbox) -> None:
        """Remove what no run needs; one that cannot be removed does not keep the service from starting."""
        try:
            await self._deps.runtime.remove(box.container_id)
        except PodmentorError as error:
            log.warning("the container of run %s cannot be removed yet: %s", box.run_id, error.message)
            self.note(box.run_id)

    async def requeued(self, run: StoredRun) -> None:
        """Remove what there may be of a container whose making was cut short; the run will get another one."""
        run_id = run.record.run_id
        try:
            await self._deps.runtime.remove_run(run_id, sandbox_id=run.record.sandbox_id)
        except PodmentorError as error:
            log.warning("run %s: what a crash left of its container is still there: %s", run_id, error.message)

    def note(self, run_id: str) -> None:
        """Something of this run, which has ended, is still there."""
        self._left.add(run_id)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._tasks.spawn(self._sweep(), name="sweep")

    async def _sweep(self) -> None:
        pause = FIRST_PAUSE
        while self._left:
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)
            for run_id in sorted(self._left):
                if await self._gone(run_id):
                    log.info("run %s: what was left of it is gone now", run_id)
                    self._left.discard(run_id)

    async def _gone(self, run_id: str) -> bool:
        try:
            async with asyncio.timeout(TEARDOWN_SECONDS):
                sandbox_id = (await self._deps.store.run(run_id)).record.sandbox_id
                await self._deps.runtime.remove_run(run_id, sandbox_id=sandbox_id)
                await self._deps.relay.revoke(run_id)
                await self._deps.workspaces.remove_control_dir(run_id)
                await leave_account(run_id, self._deps)
        except (PodmentorError, TimeoutError, OSError) as error:
            log.warning("run %s: something is still left of it: %s", run_id, error)
            return False
        return True

    async def aclose(self) -> None:
        """Stop trying."""
        await self._tasks.aclose()
