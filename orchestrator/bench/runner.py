"""Plays the scenes of one backend and has the checks judge; last the conformance kit's contracts, on what was run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from orchestrator.bench.check import LAST_NUMBER, LAST_TITLE, Check
from orchestrator.bench.checks import CHECKS
from orchestrator.bench.fixture import Stage
from orchestrator.bench.recorder import MAX_STDOUT, check_writable, record, recording_of
from orchestrator.bench.results import BackendReport, CheckResult, Evidence, Observed, Seen
from orchestrator.bench.scenes import AFTER, FIRST, SCENES, Scene, SceneError
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.runs import RunFilter, RunService
from orchestrator.errors import PodmentorError
from orchestrator.events import AgentEvent
from orchestrator.system.tasks import TaskOwner
from orchestrator.testing.conformance import RECORDING_CONTRACTS, Subject
from orchestrator.testing.kit import calls_before_results, final_text_was_said, in_tables, one_terminal
from orchestrator.testing.recordings import from_dict

log = logging.getLogger(__name__)

SCENE_SECONDS: Final = 600.0
"""Last resort: every scene is bounded by the limits of its runs."""
CANCEL_SECONDS: Final = 60.0
DECLARED: Final = ("streaming", "deltas", "thinking", "resume", "cost")
"""What an adapter says of itself and the bench can see."""

Progress = Callable[[str], None]
EVENTS: Final[tuple[Callable[[list[AgentEvent]], None], ...]] = (
    lambda events: one_terminal(events, "the run"),
    calls_before_results,
    final_text_was_said,
)
"""Of what a client gets."""
REVIEWED: Final = "C12"
"""Compares with events that a person has read: there are none of a run that has just been made."""
REPEATING: Final = frozenset({"C02", "C06", "C07", "C08"})
"""They read an output once for each of its lines or bytes: for short ones only."""
SHORT: Final = 32 * 1024
"""Bytes."""


async def play_all(stage: Stage, *, jobs: int, progress: Progress, scenes: Sequence[Scene] = SCENES) -> Evidence:
    """Play the scenes, at most ``jobs`` at once; the first one alone, and the others only when it went well."""
    seen: dict[str, Seen] = {}
    requests = len(stage.provider.requests)
    first = await _play(stage, FIRST, seen, progress)
    seen[FIRST.name] = replace(first, facts={**first.facts, "requests": len(stage.provider.requests) - requests})
    if _went_well(seen[FIRST.name]):
        slots = asyncio.Semaphore(jobs)
        known = dict(seen)

        async def in_slot(scene: Scene) -> None:
            async with slots:
                seen[scene.name] = await _play(stage, scene, known, progress)

        owner = TaskOwner("bench")
        try:
            tasks = [owner.spawn(in_slot(scene), name=scene.name) for scene in scenes]
            await asyncio.gather(*tasks)
        finally:
            await owner.aclose()
        seen[AFTER.name] = await _play(stage, AFTER, seen, progress)
    declared = {name: bool(value) for name, value in asdict(stage.adapter.capabilities).items()}
    declared["usage"] = stage.adapter.reports_usage
    evidence = Evidence(scenes=seen, supports_resume=stage.adapter.supports_resume, declared=declared, sent=stage.usage)
    return replace(evidence, broken=tuple(await asyncio.to_thread(broken_contracts, stage.adapter, evidence)))


async def _play(stage: Stage, scene: Scene, before: Mapping[str, Seen], progress: Progress) -> Seen:
    began = time.monotonic()
    try:
        async with asyncio.timeout(SCENE_SECONDS):
            seen = await scene.play(stage, before)
    except (SceneError, PodmentorError) as error:
        seen = Seen(name=scene.name, failure=str(error))
    except TimeoutError:
        seen = Seen(name=scene.name, failure=f"the scene took longer than {SCENE_SECONDS:.0f} s")
    except Exception as error:
        log.exception("the scene %s could not be played", scene.name)
        seen = Seen(name=scene.name, failure=f"a bug of the bench: {type(error).__name__}: {error}")
    progress(f"{scene.name}: {_word(seen)} ({time.monotonic() - began:.1f} s)")
    return replace(seen, facts={**seen.facts, "spoken": stage.spoken(scene.name)})


async def clear(runs: RunService) -> None:
    """End and remove every run there is; those that do not end are left to the sweep of the next start."""
    for run in await runs.list_runs(RunFilter(user_id=None, limit=1000)):
        if run.state != "finished":
            await runs.cancel(run.run_id, user_id=None)
            await runs.wait(run.run_id, user_id=None, timeout=CANCEL_SECONDS)
    for subagent in await runs.list_subagents(user_id=None):
        try:
            await runs.delete_subagent(subagent.subagent_id, user_id=None)
        except PodmentorError as error:
            log.warning("a run of the bench could not be removed: %s", error.message)


def _word(seen: Seen) -> str:
    return seen.failure or ", ".join(run.how[:60] for run in seen.runs) or "done"


def _went_well(seen: Seen) -> bool:
    return seen.failure is None and all(run.record.outcome == "completed" for run in seen.runs)


def judge(evidence: Evidence, checks: Sequence[Check] = CHECKS) -> tuple[CheckResult, ...]:
    """What the checks say.  Without a plain answer the others would only repeat that there is none."""
    first = evidence.scenes.get(FIRST.name)
    if first is not None and _went_well(first):
        results = [check.result(evidence) for check in checks]
        return (*results, _declared(evidence, capabilities_of(results, checks)))
    head, *rest = checks
    skipped = (CheckResult(number=c.number, title=c.title, outcome="skipped", detail="") for c in rest)
    return (head.result(evidence), *skipped)


def capabilities_of(results: Sequence[CheckResult], checks: Sequence[Check] = CHECKS) -> dict[str, bool]:
    """What the CLI can do, as far as the checks show."""
    by_number = {result.number: result for result in results}
    return {
        check.capability: by_number[check.number].outcome == "pass"
        for check in checks
        if check.capability is not None and by_number[check.number].outcome != "skipped"
    }


def _declared(evidence: Evidence, seen: Mapping[str, bool]) -> CheckResult:
    """The last check: clients choose by what the adapter declares."""
    wrong = [
        f"{name}: {'it can' if seen[name] else 'it cannot'}, and the adapter says otherwise"
        for name in DECLARED
        if name in seen and seen[name] != evidence.declared.get(name, False)
    ]
    return CheckResult(
        number=LAST_NUMBER, title=LAST_TITLE, outcome="fail" if wrong else "pass", detail="; ".join(wrong)
    )


async def bench(stage: Stage, *, jobs: int, progress: Progress, record_to: Path | None = None) -> BackendReport:
    """Try the backend on the stage.  ``record_to``: keep what its CLI printed, a recording in a folder for each run.
    Raises StorageError."""
    began = time.monotonic()
    if record_to is not None:
        await asyncio.to_thread(check_writable, record_to)
    image_tag, cli_version = None, None
    for info in await stage.runs.backends(user_id=None):
        if info.name == stage.backend:
            image_tag, cli_version = info.image_tag, info.cli_version
    evidence = await play_all(stage, jobs=jobs, progress=progress)
    if record_to is not None:
        await asyncio.to_thread(record, stage.adapter, evidence, record_to)
    return report(
        stage.backend, evidence, image_tag=image_tag, cli_version=cli_version, seconds=time.monotonic() - began
    )


def report(
    backend: str, evidence: Evidence, *, image_tag: str | None, cli_version: str | None, seconds: float
) -> BackendReport:
    """The bench's word on this backend."""
    results = judge(evidence)
    return BackendReport(
        backend=backend,
        image_tag=image_tag,
        cli_version=cli_version,
        when=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        results=results,
        capabilities=capabilities_of(results),
        declared=evidence.declared,
        timings={**timings(evidence), "bench": round(seconds, 1)},
    )


def timings(evidence: Evidence) -> dict[str, float]:
    """Seconds of the run that had the machine to itself, from taken out of the line: until the CLI's first event, the
    first text, the end."""
    runs: Sequence[Observed] = evidence.scenes[FIRST.name].runs if FIRST.name in evidence.scenes else ()
    out: dict[str, float] = {}
    for run in runs:
        agent = [event.ts for event in run.events if event.source == "agent"]
        text = [event.ts for event in run.of("message_delta")]
        for name, ts in (
            ("start", agent[0] if agent else None),
            ("first_text", text[0] if text else None),
            ("whole", run.record.finished_at),
        ):
            if (spent := run.seconds_until(ts)) is not None:
                out[name] = round(spent, 2)
    return out


def broken_contracts(adapter: BaseAdapter, evidence: Evidence) -> list[str]:
    """What is wrong with the events of the runs, and with what the adapter makes of their output.  Blocks."""
    found: list[str] = []
    for scene in evidence.scenes.values():
        for run in scene.runs:
            found += [f"{scene.name}: {problem}" for problem in [*of_events(run), *_of_output(adapter, run)]]
    return found


def of_events(run: Observed) -> list[str]:
    """What is wrong with the events that clients got.  Pure."""
    events = [from_dict(event.to_dict()) for event in run.events]
    agents = [from_dict(event.to_dict()) for event in run.events if event.source == "agent"]
    found: list[str] = []
    for check, checked in [*((check, events) for check in EVENTS), (in_tables, agents)]:
        try:
            check(checked)
        except AssertionError as error:
            found.append(str(error))
    return found


def _of_output(adapter: BaseAdapter, run: Observed) -> list[str]:
    recording = recording_of(run) if run.log is not None else None
    if recording is None or len(recording.stdout) > MAX_STDOUT:
        return []
    found: list[str] = []
    for contract in RECORDING_CONTRACTS:
        skipped = contract.number == REVIEWED or (contract.number in REPEATING and len(recording.stdout) > SHORT)
        try:
            if not skipped:
                contract(cast("Subject", adapter), recording)
        except AssertionError as error:
            found.append(f"{contract}: {error}")
    return found
