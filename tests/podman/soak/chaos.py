"""Kills what the runs stand on, one at a time: the service, Podman's service, the relay, a conmon.

Each pid is looked at before it is killed: its command line must name this soak's own directories.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from random import Random

from tests.podman.live import LiveService, processes_with

WEIGHTS = {
    "service killed": 5,
    "service stopped": 2,
    "Podman service killed": 5,
    "Podman service hung": 2,
    "service and Podman service killed": 2,
    "relay killed": 3,
    "conmon killed": 5,
}


START_ATTEMPTS = 5


class Chaos:
    """``up`` is set while the service can be asked.  ``deaths``: by run the moment its conmon was killed."""

    def __init__(self, service: LiveService, random: Random) -> None:
        self._service = service
        self._random = random
        self.up = asyncio.Event()
        self.up.set()
        self.done: Counter[str] = Counter()
        self.away: list[tuple[float, float]] = []
        """From when until when there was no service that could have ended anything."""
        self.deaths: dict[str, float] = {}
        self.failures: list[str] = []

    async def run(self, pause: tuple[float, float]) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(*pause))
            what = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            at = self._random.random()
            if await self._do(what, at):
                self.done[what] += 1

    async def _do(self, what: str, at: float) -> bool:
        match what:
            case "service killed":
                await self._restart(self._service.kill)
            case "service stopped":
                await self._restart(self._service.terminate)
            case "Podman service killed":
                return self._signal(self._podman(), signal.SIGKILL)
            case "Podman service hung":
                return self._signal(self._podman(), signal.SIGSTOP)
            case "service and Podman service killed":
                podman = self._podman()
                await self._restart(self._service.kill, podman)
            case "relay killed":
                return self._signal(self._relay(), signal.SIGKILL)
            case _:
                conmons = self._conmons()
                if not conmons:
                    return False
                pid, run_id = conmons[int(at * len(conmons))]
                self.deaths[run_id] = time.monotonic()
                return self._signal([pid], signal.SIGKILL)
        return True

    async def _restart(self, end: object, also: list[int] | None = None) -> None:
        self.up.clear()
        began = time.monotonic()
        try:
            await end()  # type: ignore[operator]
            self._signal(also or [], signal.SIGKILL)
            for _ in range(START_ATTEMPTS):
                try:
                    await self._service.start()
                    break
                except AssertionError as error:
                    self.failures.append(f"the service did not start: {str(error)[-600:]}")
                    await asyncio.sleep(1.0)
            else:
                raise AssertionError("the service does not start any more")
        finally:
            self.away.append((began, time.monotonic()))
            self.up.set()

    @staticmethod
    def _signal(pids: list[int], number: signal.Signals) -> bool:
        reached = False
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                os.kill(pid, number)
                reached = True
        return reached

    def _podman(self) -> list[int]:
        return processes_with(f"unix://{self._service.runtime}/podman.sock")

    def _relay(self) -> list[int]:
        return processes_with(f"{self._service.state}/relay.log")

    def _conmons(self) -> list[tuple[int, str]]:
        runs = self._service.state / "runs"
        found = []
        for run in sorted(runs.iterdir()):
            pids = processes_with(f"k8s-file:{run}/ctr.log")
            found += [(pid, run.name) for pid in pids]
        return found
