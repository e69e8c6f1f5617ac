"""Every scene of the bench, and some more, played once by each backend's real CLI in its container.

The bench judges what every CLI must do; the facts here are what is known beyond that of each one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from click.testing import CliRunner

from orchestrator.bench import runner
from orchestrator.bench.fixture import Stage
from orchestrator.bench.results import BackendReport, Evidence, Observed, Seen
from orchestrator.bench.runner import Progress, play_all
from orchestrator.bench.scenes import SCENES, Scene, SceneError, make_run, prompt_of, simple
from orchestrator.cli.main import cli
from orchestrator.scripted import ScriptedProvider, SeenRequest
from tests.podman.live import podman, processes_with

Ends = dict[str, tuple[str, str]]
"""Scenario to outcome and reason."""

COMPLETED = ("completed", "")
CLI_FAILED = ("failed", "cli_failed")
REFUSED = ("failed", "auth_rejected")
LIMITED = ("failed", "rate_limited")
UNAVAILABLE = ("failed", "provider_unavailable")
WELL = dict.fromkeys(["text", "thinking", "shell", "tools2", "fail", "badtool", "utf8", "huge"], COMPLETED)
ILL = {"401": REFUSED, "403": REFUSED, "busy": LIMITED, "spent": LIMITED, "500": UNAVAILABLE, "cut": UNAVAILABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is particular to one backend."""

    transcripts: str
    """What the files are called that hold its conversations."""
    ends: Ends
    edits: list[tuple[str, Any]]
    """Name and input of the tools that the scenario ``edit`` calls; an input of None: it is not looked at."""
    tokens: Mapping[str, int]
    """Of the plain answer."""
    retries: Mapping[str, list[int] | None]
    """The attempts that are reported of while a provider fails; None: some."""
    requests: list[str]
    """All requests for a plain answer: nothing else is asked, before or after."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """How many requests come of a scenario."""
    failed_tool: bool = True
    """Whether a command's failure is reported as an error."""
    jobs: int = 6
    """Runs at once."""
    quiet: bool = True
    """Whether it says nothing on stderr while all is well."""
    delegates: tuple[str, ...] = ()
    """The kinds of events that a sub-agent's work comes as."""
    thinking: bool = True


FACTS: Final = {
    "claude-code": Facts(
        transcripts="*.jsonl",
        ends={
            **WELL,
            **ILL,
            "delegate": COMPLETED,
            "credit": ("failed", "credit_exhausted"),
            "529": UNAVAILABLE,
            "maxtok": CLI_FAILED,
        },
        edits=[("Write", None), ("Edit", None)],
        tokens={},
        retries={"401": None, "busy": None, "500": None},
        requests=["POST /v1/messages"],
        jobs=10,
        delegates=("tool_use", "tool_result"),
    ),
    "codex": Facts(
        transcripts="rollout-*.jsonl",
        ends={
            **WELL,
            **ILL,
            "credit": ("failed", "credit_exhausted"),
            "429": LIMITED,
            "529": UNAVAILABLE,
            "torn": UNAVAILABLE,
            "maxtok": CLI_FAILED,
        },
        edits=[("Edit", {"changes": [{"path": "/workspace/note.txt", "kind": kind}]}) for kind in ("add", "update")],
        tokens={"input": 1200},
        retries={name: [1, 2, 3, 4] for name in ("401", "busy", "500", "529", "cut", "torn")},
        requests=["POST /v1/responses"],
    ),
    "gemini": Facts(
        transcripts="session-*.jsonl",
        ends={
            **WELL,
            **ILL,
            "badkey": REFUSED,
            "404": CLI_FAILED,
            "503": UNAVAILABLE,
            "torn": UNAVAILABLE,
            "broken": UNAVAILABLE,
            "maxtok": COMPLETED,  # it does not tell that its answer was cut off by the limit of tokens
        },
        edits=[("write_file", None), ("replace", None)],
        tokens={"input": 900, "output": 7, "cache_read": 300, "reasoning": 0},
        retries={},
        requests=["POST /v1beta/models/gemini-3.8-flash:streamGenerateContent"],
        asked={"busy": 3, "500": 3, "503": 3},
        failed_tool=False,
        quiet=False,
        thinking=False,
    ),
    "opencode": Facts(
        transcripts="opencode.db*",
        ends={
            **WELL,
            **ILL,
            "delegate": COMPLETED,
            "404": CLI_FAILED,
            "credit": ("failed", "credit_exhausted"),
            "429": LIMITED,
            "529": UNAVAILABLE,
            "torn": UNAVAILABLE,
            "broken": UNAVAILABLE,
            "maxtok": CLI_FAILED,
        },
        edits=[("apply_patch", None), ("apply_patch", None)],  # with models of the GPT family
        tokens={},
        retries={name: [1, 2, 3] for name in ("busy", "429", "500", "529", "cut", "torn", "broken")},
        requests=["POST /v1/chat/completions"],
        delegates=("thinking", "tool_use", "message_delta"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What was seen of one backend."""

    facts: Facts
    evidence: Evidence
    exit_code: int
    """Of the command."""
    found: dict[str, Any]
    """What the command printed of this backend."""
    report: BackendReport
    plain: Sequence[SeenRequest]
    """The requests that were made for the plain answer."""
    requests: Sequence[SeenRequest]
    recordings: Path
    left: list[str]
    """What of its runs is still there when all have ended, and of the bench itself when the command has."""

    def run(self, scene: str, number: int = -1) -> Observed:
        """A scene's last run."""
        return self.evidence.scenes[scene].runs[number]

    def results(self, scene: str) -> list[dict[str, Any]]:
        """The data of a scene's tool results."""
        return [dict(event.data) for event in self.run(scene).of("tool_result")]


def shape(run: Observed) -> list[str]:
    """Kinds with phases, repetitions folded; what a CLI says on stderr left out."""
    names = [f"status:{e.data['phase']}" if e.kind == "status" else e.kind for e in run.events]
    names = [name for name in names if name != "status:diagnostic"]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def play(backend: str, root: Path) -> Played:
    """Have ``podmentor bench`` play all its scenes of one backend, and those that are only ours."""
    facts = FACTS[backend]
    plain: list[SeenRequest] = []
    requests: list[SeenRequest] = []
    evidence: list[Evidence] = []
    left: list[str] = []

    async def forgotten(stage: Stage, _: Mapping[str, Seen]) -> Seen:
        """A following run after the CLI has lost this one conversation, and nothing else."""
        first = await make_run(stage, "Hello.")
        home = stage.paths.subagent_dir(first.record.subagent_id) / "home"
        transcripts = [path for path in home.rglob(facts.transcripts) if path.is_file()]
        if not transcripts:
            raise SceneError(f"no {facts.transcripts} in the home")
        for transcript in transcripts:
            transcript.unlink()
        return Seen(
            name="forgotten", runs=(first, await make_run(stage, "Go on.", subagent_id=first.record.subagent_id))
        )

    async def third(stage: Stage, _: Mapping[str, Seen]) -> Seen:
        """A conversation of three runs."""
        runs = [await make_run(stage, prompt_of("remember", "My name is Ada."))]
        for _number in (2, 3):
            prompt = prompt_of("remember", "What is my name?")
            runs.append(await make_run(stage, prompt, subagent_id=runs[0].record.subagent_id))
        return Seen(name="third", runs=tuple(runs))

    known = {scene.name for scene in SCENES}
    more = [simple(name) for name in facts.ends if name not in known | {"text"}]
    scenes = [*more, *SCENES, Scene("forgotten", forgotten), Scene("third", third)]

    async def play_more(stage: Stage, *, jobs: int, progress: Progress) -> Evidence:
        assert isinstance(stage.provider, ScriptedProvider)
        provider = stage.provider

        def noted(text: str) -> None:
            progress(text)
            if not plain:  # the first scene is played alone
                plain.extend(provider.requests)

        evidence.append(await play_all(stage, jobs=jobs, progress=noted, scenes=scenes))
        requests.extend(provider.requests)
        instance = (stage.paths.state_dir / "instance").read_text().strip()
        label = f"--filter=label=podmentor.instance={instance}"
        ids = [run.record.run_id for run in evidence[0].runs()]
        left.extend((await podman("ps", "--all", "--quiet", label)).split())
        left.extend(f"{place}" for run_id in ids if (place := stage.paths.runtime_dir / run_id).exists())
        left.extend(f"{run_id}: process {pid}" for run_id in ids for pid in processes_with(run_id))
        return evidence[0]

    state, recordings = root / "state", root / "recordings"
    arguments = ["--state", state, "bench", backend, "--jobs", facts.jobs, "--record", recordings, "--json", "-v"]
    with patch.object(runner, "play_all", play_more):
        ended = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    print(ended.stderr)
    assert evidence, ended.output
    [found] = json.loads(ended.stdout)["backends"]
    left.extend(str(place) for place in [state / "bench" / backend] if place.exists())
    left.extend(f"process {pid}" for pid in processes_with(f"{root}/"))
    return Played(
        facts=facts,
        evidence=evidence[0],
        plain=plain,
        requests=requests,
        exit_code=ended.exit_code,
        found=found,
        report=runner.report(
            backend,
            evidence[0],
            image_tag=None,
            cli_version=evidence[0].scenes["text"].runs[0].record.cli_version,
            seconds=0,
        ),
        recordings=recordings / backend,
        left=left,
    )
