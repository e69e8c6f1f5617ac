"""The scenes: which runs are made, and what is noted of each.  They judge nothing.

The prompt of a run names the scenario that the scripted provider plays.  A scene is bounded in time, and ends the runs
that it has begun.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from orchestrator.bench.fixture import Stage
from orchestrator.bench.results import Observed, Seen
from orchestrator.contract.runs import LimitsRequest, RunRequest
from orchestrator.errors import NotFoundError

USER: Final = "bench"
WALL_CLOCK: Final = 150.0
"""Seconds of a run; a CLI that is still retrying then is one that does not give up in bounded time."""
RUN_SECONDS: Final = 240.0
"""For a run that does not even heed its wall clock."""
HELD_SECONDS: Final = 20.0
"""How long events may take to come out of a CLI while the provider holds the answer; a busy machine is not the CLI's
fault, and one that streams lets nobody wait."""
PROCESS_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 6.0
"""The wall clock of the run that is to exceed it."""
PROMPTS: Final = (
    "/login page returns 404, fix it",
    "/help",
    "@note.txt is wrong, fix it",
    "!ls prints nothing",
    "# heading",
    "--help is not shown",
)
"""None of them is a command, whatever the CLI has one for."""
# OpenCode's are left out: of a repo that has ``.opencode`` it wants packages from npm.
COMMANDS: Final = {
    ".claude/commands/login.md": "This is the repo's own text. $ARGUMENTS\n",
    ".codex/prompts/login.md": "This is the repo's own text. $ARGUMENTS\n",
    ".gemini/commands/login.toml": 'prompt = "This is the repo\'s own text. {{args}}"\n',
}
MARKED: Final = "podmentor-bench"

COUNTED: Final = ",".join(str(number) for number in range(1, 151))
"""A line that the shell prints behind the mark: longer than what looks short in a table."""

Play: TypeAlias = Callable[[Stage, Mapping[str, Seen]], Awaitable[Seen]]
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Scene:
    """``recorded``: what the CLI printed is the same each time but for ids and times, and holds nothing private."""

    name: str
    play: Play
    recorded: bool = True


class SceneError(Exception):
    """The scene cannot be played to its end."""


def prompt_of(scenario: str, text: str = "Please do what you think is right.") -> str:
    """A prompt that has the provider play ``scenario``."""
    return f"{text}\nscenario: {scenario}"


async def make_run(
    stage: Stage,
    prompt: str,
    *,
    subagent_id: str | None = None,
    seconds: float = WALL_CLOCK,
    repo: Path | None = None,
) -> Observed:
    """A run from accepted to finished, on an overlay of ``repo``."""
    run_id, resumed = await begin(stage, prompt, subagent_id=subagent_id, seconds=seconds, repo=repo)
    return replace(await observe(stage, run_id), resumed=resumed)


async def begin(
    stage: Stage,
    prompt: str,
    *,
    subagent_id: str | None = None,
    seconds: float = WALL_CLOCK,
    repo: Path | None = None,
) -> tuple[str, str | None]:
    """Submit a run; its id, and the session that it resumes."""
    resumed = None
    if subagent_id is not None:
        resumed = (await stage.runs.get_subagent(subagent_id, user_id=USER)).backend_session_id
    record = await stage.runs.submit(
        RunRequest(
            backend=stage.backend,
            query=prompt,
            user_id=USER,
            subagent_id=subagent_id,
            tier=1,
            privileged=True,
            repo_path=repo,
            limits=LimitsRequest(wall_clock_seconds=seconds),
        )
    )
    return record.run_id, resumed


async def observe(stage: Stage, run_id: str) -> Observed:
    """The run once it is finished.  Raises SceneError when it does not finish; it is cancelled then."""
    record = await stage.runs.wait(run_id, user_id=USER, timeout=RUN_SECONDS)
    if record.state != "finished":
        await stage.runs.cancel(run_id, user_id=USER)
        raise SceneError(f"the run had not finished after {RUN_SECONDS:.0f} s")
    events = [event async for event in stage.runs.events(run_id, user_id=USER, follow=False)]
    log: Path | None = None
    with suppress(NotFoundError):
        log = await stage.runs.log_path(run_id, user_id=USER)
    return Observed(record=record, events=tuple(events), log=log)


def simple(scenario: str, text: str = "Please do what you think is right.") -> Scene:
    """A scene of one run of one scenario, both of the same name."""

    async def play(stage: Stage, _: Mapping[str, Seen]) -> Seen:
        return Seen(name=scenario, runs=(await make_run(stage, prompt_of(scenario, text)),))

    return Scene(scenario, play)


async def _shell(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    prompt = f"scenario: dump\nRUN: echo {MARKED} > out.txt && cat out.txt && seq 150 | paste -sd,"
    return Seen(name="shell", runs=(await make_run(stage, prompt),))


async def _prompts(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    """Prompts that begin as commands, files and options do, in a repo that defines the command; the model repeats what
    it was asked."""
    repo = stage.repo.with_name("repo-with-commands")
    await asyncio.to_thread(_define_command, repo)
    runs = [await make_run(stage, prompt_of("remember", text), repo=repo) for text in PROMPTS]
    return Seen(name="prompts", runs=tuple(runs))


def _define_command(repo: Path) -> None:
    """Where the CLIs look for a repo's own commands."""
    for name, text in COMMANDS.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text, encoding="utf-8")


async def _held(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    """What comes out while the provider holds the answer in its middle."""
    run_id, _resumed = await begin(stage, prompt_of("gate"))
    kinds: list[str] = []

    async def read() -> None:
        async for event in stage.runs.events(run_id, user_id=USER):
            if event.source == "agent" and event.kind != "status":
                kinds.append(event.kind)
            if event.kind == "message_delta" or event.terminal:
                return

    try:
        await stage.provider.reached("gate", timeout=PROCESS_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(read(), HELD_SECONDS)
        held = tuple(kinds)
    except TimeoutError:
        await stage.runs.cancel(run_id, user_id=USER)
        raise SceneError("the CLI did not ask the provider") from None
    finally:
        await stage.provider.release("gate")
    return Seen(name="gate", runs=(await observe(stage, run_id),), facts={"held": held})


async def _edit(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    before = await asyncio.to_thread(snapshot, stage.repo)
    run = await make_run(stage, prompt_of("edit"), repo=stage.repo)
    changes = await stage.changes.changes(run.record.subagent_id, user_id=USER)
    patch = await stage.changes.patch(run.record.subagent_id, user_id=USER)
    facts = {
        "changes": [(change.path, change.change) for change in changes],
        "patch": patch.decode("utf-8", "replace"),
        "untouched": before == await asyncio.to_thread(snapshot, stage.repo),
    }
    return Seen(name="edit", runs=(run,), facts=facts)


async def _remember(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    first = await make_run(stage, prompt_of("remember", "My name is Ada."))
    if first.record.outcome != "completed":
        return Seen(name="remember", runs=(first,))
    second = await make_run(stage, "What was it?", subagent_id=first.record.subagent_id)
    return Seen(name="remember", runs=(first, second))


async def _lost(stage: Stage, before: Mapping[str, Seen]) -> Seen:
    """A following run whose session the CLI no longer has: everything in its home is gone."""
    subagent_id = before["text"].runs[0].record.subagent_id
    home = stage.paths.subagent_dir(subagent_id) / "home"
    await asyncio.to_thread(_empty, home)
    run = await make_run(stage, "Go on.", subagent_id=subagent_id)
    return Seen(name="lost", runs=(run,))


def _empty(home: Path) -> None:
    for path in home.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


async def _cancel(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    """Cancelled while a tool runs, which has also put a process in the background that heeds no signal."""
    number = str(10**6 + secrets.randbelow(10**6))
    marker = f"sleep\0{number}"
    stubborn = f"(setsid sh -c 'trap \"\" INT TERM HUP; sleep {number}' &)"
    run_id, _resumed = await begin(stage, f"scenario: dump\nRUN: {stubborn} ; sleep {number}")
    seen_running = await _until(lambda: len(processes_with(marker)) >= 2, PROCESS_SECONDS)
    await stage.runs.cancel(run_id, user_id=USER)
    run = await observe(stage, run_id)
    left = await asyncio.to_thread(processes_with, marker)
    return Seen(name="cancel", runs=(run,), facts={"running": seen_running, "left": left})


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether something in the world outside, which gives no signal, comes to hold."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(holds):  # noqa: ASYNC110  # there is nothing to wait on
                await asyncio.sleep(0.1)
            return True
    return False


async def _timeout(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    return Seen(name="timeout", runs=(await make_run(stage, prompt_of("hang"), seconds=TIMEOUT_SECONDS),))


async def _secrets(stage: Stage, _: Mapping[str, Seen]) -> Seen:
    """The agent itself looks for the key wherever it may look."""
    look = (
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
        "find /home/agent /tmp /run/podmentor -type f -exec cat {} + 2>/dev/null | head -c 200000 | tr -d '\\000'"
    )
    return Seen(name="secrets", runs=(await make_run(stage, f"scenario: dump\nRUN: {look}"),))


async def after(stage: Stage, before: Mapping[str, Seen]) -> Seen:
    """What is to be found once all runs have ended."""
    facts: dict[str, Any] = {
        "leftovers": await stage.leftovers(),
        "files": await asyncio.to_thread(files_with, [stage.paths.state_dir, stage.paths.runtime_dir], stage.key),
        "events": [
            event.run_id
            for scene in before.values()
            for run in scene.runs
            for event in run.events
            if stage.key in str(event.data)
        ],
        "keys": len({request.key for request in stage.provider.requests}),
        "key_used": any(request.key == stage.key for request in stage.provider.requests),
    }
    return Seen(name="after", facts=facts)


FIRST: Final = simple("text", "Please greet me.")
"""Alone, so that its times mean something; nothing else is tried when it fails."""
AFTER: Final = Scene("after", after, recorded=False)
SCENES: Final[tuple[Scene, ...]] = (
    # Those that take longest come first.
    simple("busy"),
    simple("500"),
    simple("cut"),
    simple("401"),
    Scene("cancel", _cancel, recorded=False),
    Scene("remember", _remember),
    Scene("edit", _edit),
    Scene("prompts", _prompts, recorded=False),
    simple("huge"),
    Scene("gate", _held),
    simple("thinking"),
    Scene("shell", _shell),
    simple("fail"),
    simple("delegate"),
    simple("maxtok"),
    simple("utf8"),
    Scene("lost", _lost),
    Scene("timeout", _timeout, recorded=False),
    Scene("secrets", _secrets, recorded=False),
)


def processes_with(text: str) -> list[int]:
    """Pids whose command line (words divided by NUL) has ``text``."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def files_with(roots: Iterable[Path], text: str) -> list[str]:
    """The files below ``roots`` that hold ``text``; those that may not be read hold nothing that we have written."""
    needle = text.encode()
    found: list[str] = []
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory) / name
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink() and _holds(path, needle):
                        found.append(str(path))
    return found


def _holds(path: Path, needle: bytes) -> bool:
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if needle in rest + chunk:
                return True
            rest = chunk[-len(needle) :]
    return False


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
