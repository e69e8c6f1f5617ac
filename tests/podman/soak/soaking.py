"""The soak itself: runs are submitted, followed over every restart, cancelled; each one's death is timed."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from orchestrator.contract.sandbox import LABEL_INSTANCE
from orchestrator.scripted import ScriptedProvider
from orchestrator.system.tasks import TaskOwner
from tests.podman.live import LiveService, podman
from tests.podman.soak.agents import Plan, make_repos, plan
from tests.podman.soak.chaos import Chaos
from tests.podman.soak.eyes import Eyes
from tests.podman.soak.leftovers import Leftovers, with_service, without_service

DEATH_SECONDS = 5.0
RUN_SECONDS = 240.0
"""No run of a soak may take longer from its submission to its last event."""
QUIET_SECONDS = 90.0
"""What the service has, after the last run, to remove what could not be removed before."""


@dataclass
class Story:
    """One run.  Times are monotonic."""

    number: int
    plan: Plan
    run_id: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    cancelled_at: float | None = None
    cause: str = ""
    """What made the run's processes die, when that is timed."""
    death: float | None = None
    """Seconds from the cause until no process was alive; those in which there was no service are not counted, but for
    the deadline, which needs none."""
    load: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass
class Result:
    """What a soak has found."""

    seed: int
    stories: list[Story]
    chaos: dict[str, int]
    left_before: Leftovers
    left: Leftovers
    seconds: float
    longest_gap: float
    highest_load: float
    failures: list[str] = field(default_factory=list)
    kept: str = ""

    @property
    def faults(self) -> list[str]:
        """All that must not be, but for the leftovers."""
        return [*self.failures] + [
            f"run {story.number} ({story.plan.kind.name}): {fault}" for story in self.stories for fault in story.faults
        ]

    @property
    def slow(self) -> list[Story]:
        return [story for story in self.stories if story.death is not None and story.death > DEATH_SECONDS]

    @property
    def clean(self) -> bool:
        return not self.faults and not any(self.left.values())


class Soak:
    """``run`` it once, in a directory of its own."""

    def __init__(
        self, root: Path, *, runs: int, seed: int, at_once: int, pause: tuple[float, float], say: Any = print
    ) -> None:
        self._root = root
        self._seed = seed
        self._at_once = at_once
        self._pause = pause
        self._say = say
        random = Random(seed)
        self._stories = [Story(number, plan(random)) for number in range(1, runs + 1)]
        self._tasks = TaskOwner("soak")
        self._load = 0.0

    async def run(self) -> Result:
        began = time.monotonic()
        repos = self._root / "repos"
        await asyncio.to_thread(make_repos, repos)
        async with ScriptedProvider() as provider:
            service = LiveService(
                self._root,
                provider.base_url,
                backend={"binary": "/workspace/cli"},
                runs={"max_concurrent": max(1, self._at_once - 2)},
            )
            self._service, self._eyes = service, Eyes(service.runtime)
            self._chaos = Chaos(service, Random(self._seed + 1))
            await service.start()
            self._eyes.open()
            try:
                await self._all(repos)
                before = await with_service(service, self._eyes)
                left = await self._quiet(before)
                for story in self._stories:
                    await self._check(story)
                await self._delete()
                await service.terminate()
                left |= await without_service(service)
            finally:
                await self._tasks.aclose()
                await self._eyes.aclose()
                await self._end(service)
        return Result(
            self._seed,
            self._stories,
            dict(self._chaos.done),
            before,
            left,
            time.monotonic() - began,
            self._eyes.longest_gap,
            self._load,
            self._chaos.failures,
        )

    async def _all(self, repos: Path) -> None:
        slots = asyncio.Semaphore(self._at_once)

        async def one(story: Story) -> None:
            async with slots:
                try:
                    async with asyncio.timeout(RUN_SECONDS):
                        await self._one(story, repos)
                except TimeoutError:
                    story.faults.append(f"it has no last event after {RUN_SECONDS:.0f} s")
                except Exception:  # noqa: BLE001 -- whatever it is, it belongs into the report
                    story.faults.append(traceback.format_exc())
                self._tell(story)

        chaos = self._tasks.spawn(self._chaos.run(self._pause), name="chaos", awaited=True)
        tasks = [self._tasks.spawn(one(story), name=f"run {story.number}") for story in self._stories]
        running = set(tasks)
        while running and not chaos.done():
            _, running = await asyncio.wait({chaos, *running}, return_when=asyncio.FIRST_COMPLETED)
            running.discard(chaos)
        if chaos.done():
            await self._tasks.aclose()
            chaos.result()
        await self._chaos.up.wait()  # a restart is not cut in half
        chaos.cancel()
        await asyncio.wait({chaos})

    def _tell(self, story: Story) -> None:
        self._load = max(self._load, story.load)
        error = story.record.get("error") or {}
        reason = error.get("reason", "")
        if reason == "sandbox_failed":
            reason += f" ({error.get('message')})"
        death = "" if story.death is None else f", dead {story.death:.1f} s after {story.cause}"
        self._say(
            f"{story.number:4d} {story.run_id[:8]} {story.plan.kind.name:24} {story.record.get('outcome', '?'):10}"
            f"{reason}{death}{''.join(f' !! {fault}' for fault in story.faults)}"
        )

    async def _one(self, story: Story, repos: Path) -> None:
        key = {"Idempotency-Key": uuid.uuid4().hex}
        accepted = await self._call("POST", "/v1/runs", json=story.plan.body(repos), headers=key)
        story.run_id = accepted["run_id"]
        cancelling = None
        if story.plan.cancel_after is not None:
            cancelling = self._tasks.spawn(self._cancel(story, story.plan.cancel_after), name="cancel")
        await self._follow(story)
        if alive := (await self._eyes.look()).get(story.run_id):
            story.faults.append(f"it has finished, and processes of it live: {alive}")
        if cancelling is not None:
            cancelling.cancel()
        story.record = await self._call("GET", f"/v1/runs/{story.run_id}")
        story.load = os.getloadavg()[0]
        self._time_death(story)

    async def _cancel(self, story: Story, after: float) -> None:
        await asyncio.sleep(after)
        story.cancelled_at = time.monotonic()
        await self._call("POST", f"/v1/runs/{story.run_id}/cancel")

    async def _follow(self, story: Story) -> None:
        while True:
            await self._chaos.up.wait()
            try:
                async for event in self._service.events(story.run_id, after=len(story.events)):
                    story.events.append(event)
                    if event["kind"] in {"completed", "error"}:
                        return
            except (aiohttp.ClientError, OSError, AssertionError, TimeoutError):
                await asyncio.sleep(0.1)

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        """One request, made again when the service was away."""
        while True:
            await self._chaos.up.wait()
            try:
                return await self._service.call(method, path, **options)
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.1)
            except AssertionError as error:
                if "ShuttingDown" not in str(error) and " 503 " not in str(error) and str(error):
                    raise
                await asyncio.sleep(0.1)

    def _time_death(self, story: Story) -> None:
        """From the cancel, the deadline or the death of conmon, whichever came first and ended the run."""
        life = self._eyes.lives.get(story.run_id)
        reason = (story.record.get("error") or {}).get("reason")
        since: float | None = None
        if reason == "cancelled" and story.cancelled_at is not None:
            since, story.cause = story.cancelled_at, "the cancel"
        elif reason == "timeout":
            started = datetime.fromisoformat(story.record["started_at"]).timestamp()
            expiry = started + story.plan.limits["wall_clock_seconds"]
            since, story.cause = expiry - time.time() + time.monotonic(), "the deadline"
        elif story.run_id in self._chaos.deaths and reason == "lost":
            since, story.cause = self._chaos.deaths[story.run_id], "the death of its conmon"
        if since is None:
            return
        if life is None or life.last_alive <= since:
            story.death = 0.0
            return
        story.death = life.last_alive - since
        away = sum(max(0.0, min(life.last_alive, end) - max(since, begin)) for begin, end in self._chaos.away)
        if away and story.cause != "the deadline":  # at the deadline conmon does it alone
            story.death -= away
            story.cause += f" (the service was away for {away:.1f} s of it)"

    async def _quiet(self, left: Leftovers) -> Leftovers:
        """What is left when the service has had time to try again."""
        deadline = time.monotonic() + QUIET_SECONDS
        while any(left.values()) and time.monotonic() < deadline:
            await asyncio.sleep(2.0)
            left = await with_service(self._service, self._eyes)
        return left

    async def _check(self, story: Story) -> None:
        """The stream is whole, and what was seen live is what is kept."""
        if not story.run_id:
            return
        kept = await self._service.all_events(story.run_id)
        numbers = [event["seq"] for event in kept]
        if numbers != list(range(1, len(kept) + 1)):
            story.faults.append(f"its stream has gaps: {numbers}")
        last = [event["seq"] for event in kept if event["kind"] in {"completed", "error"}]
        if last != numbers[-1:]:
            story.faults.append(f"its last events are {last} of {len(kept)}")
        if story.events != kept:
            story.faults.append("what was streamed is not what is kept")

    async def _delete(self) -> None:
        for story in self._stories:
            if story.run_id:
                await self._call("DELETE", f"/v1/subagents/{story.record.get('subagent_id')}")

    async def _end(self, service: LiveService) -> None:
        if service._process is not None and service._process.returncode is None:
            await service.terminate()
        await service._close_session()
        if (label := service.state / "instance").exists():  # of a soak that was broken off
            ours = await podman("ps", "-aq", "--filter", f"label={LABEL_INSTANCE}={label.read_text().strip()}")
            for container in ours.split():
                await podman("rm", "-f", "-t", "0", container)
        await podman("unshare", "rm", "-rf", "--", str(service.state), str(service.runtime))
