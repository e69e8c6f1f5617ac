"""A stage whose service plays a backend that does everything right, and can be set to do single things wrong."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.bench.fixture import Stage
from orchestrator.bench.results import Usage
from orchestrator.bench.scenes import COUNTED, MARKED
from orchestrator.config.models import Paths
from orchestrator.contract.adapter import Capabilities
from orchestrator.contract.changes import FileChange
from orchestrator.contract.runs import RunRecord, RunRequest
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    Tokens,
    ToolResult,
    ToolUse,
)
from tests.fakes.adapter import EchoAdapter
from tests.fakes.run_service import FakeRunService

OUTPUT = f"{MARKED}\n{COUNTED}\n"
KEY = "sk-secret-of-the-test"
TEXTS = {
    "text": "Hello there.",
    "utf8": "Gr\u00fc\u00dfe \x1b[31mred\x1b[0m",
    "huge": "x" * 1000,
    "gate": "Before. Behind.",
}


class BenchAdapter(EchoAdapter):
    """Echo, under a name that the fake service knows."""

    name = "claude-code"
    capabilities = Capabilities(streaming=True, deltas=True, thinking=True, resume=True, cost=True)


def end(text: str = "ok", **over: Any) -> Completed:
    values: dict[str, Any] = {
        "final_text": text,
        "tokens": Tokens(input=900, output=6, cache_read=300),
        "duration_ms": 1,
        "cost_usd": 0.0048,
    }
    return Completed(**{**values, **over})


def say(text: str) -> list[AgentEvent]:
    half = len(text) // 2
    return [MessageDelta(text=part, message_id="m") for part in (text[:half], text[half:])]


def tool(name: str, content: str, *, is_error: bool = False) -> list[AgentEvent]:
    return [
        ToolUse(tool_call_id=name, name=name, input={}),
        ToolResult(tool_call_id=name, content=content, is_error=is_error),
    ]


RETRYING = Status(phase="retrying", info={"attempt": 1, "delay_ms": 1, "cause": "x"})


def fails(reason: Any, *before: AgentEvent) -> list[AgentEvent]:
    return [SessionStarted(session_id="s"), *before, Error(reason=reason, message=f"it is {reason}")]


def script() -> dict[str, list[AgentEvent]]:
    """What the good backend's runs say."""
    started = SessionStarted(session_id="s")
    return {
        **{name: [started, *say(text), end(text)] for name, text in TEXTS.items() if name != "gate"},
        "thinking": [started, Thinking(text="hm"), end()],
        "shell": [started, *tool("Bash", OUTPUT), end(f"it printed {OUTPUT}")],
        "secrets": [started, *tool("Bash", "PATH=/bin"), end("PATH=/bin")],
        "edit": [started, *tool("Write", "ok"), end()],
        "fail": [started, *tool("Bash", "no", is_error=True), end()],
        "delegate": [
            started,
            ToolUse(tool_call_id="call", name="Task", input={}),
            ToolUse(tool_call_id="inner", name="Bash", input={}, parent_tool_call_id="call"),
            ToolResult(tool_call_id="inner", content="from the helper", is_error=False, parent_tool_call_id="call"),
            ToolResult(tool_call_id="call", content="The helper says hello.", is_error=False),
            end(),
        ],
        "remember": [started, end("hello")],
        "follow": [started, end("The first was: My name is Ada.")],
        "lost": fails("resume_failed"),
        "401": fails("auth_rejected"),
        "busy": fails("rate_limited", RETRYING),
        "500": fails("provider_unavailable", RETRYING),
        "cut": fails("provider_unavailable"),
        "maxtok": fails("cli_failed"),
        "hang": fails("timeout"),
    }


@dataclass
class Key:
    """A request that came in."""

    key: str | None


class Actors(FakeRunService):
    """``script``: what each scene's runs say; ``survivors``: how many processes outlive a cancelled run."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self.script = script()
        self.paths = paths
        self.survivors = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.read_as: Callable[[str], str] = lambda prompt: prompt
        """What the CLI makes of a prompt."""
        self.bug: Callable[[list[AgentEvent]], list[AgentEvent]] = lambda events: events
        """What the adapter gets wrong in every run."""
        self.asked: Callable[[], None] = lambda: None
        """The provider is asked."""
        self.on_submit = self._play

    def _play(self, record: RunRecord) -> None:
        (self.paths.subagent_dir(record.subagent_id) / "home").mkdir(parents=True, exist_ok=True)
        self.subagents[record.subagent_id] = replace(self.subagents[record.subagent_id], backend_session_id="s")
        self.changes_of[record.subagent_id] = [
            FileChange(path="note.txt", change="added", size=1, binary=False, insertions=2, deletions=0)
        ]
        self.patch_of[record.subagent_id] = b"+alpha\n+gamma\n"
        name = self.scene_of(self.requests[-1])
        self.asked()
        if name == "cancel":
            number = re.findall(r"sleep (\d+)", record.query)[0]
            self.processes += [subprocess.Popen(["sleep", number]) for _ in range(2)]
        elif name == "prompts":
            asked = self.read_as(record.query.split("\n")[0])
            self.emit(record.run_id, SessionStarted(session_id="s"), end(f"The first was: {asked}"))
        elif name == "gate":
            self.emit(record.run_id, SessionStarted(session_id="s"), MessageDelta(text="Before. ", message_id="m"))
        else:
            for event in self.bug(self.script[name]):
                orchestrators = isinstance(event, Status) and event.phase.startswith("egress_")
                self.emit(record.run_id, event, source="orchestrator" if orchestrators else "agent")

    @staticmethod
    def scene_of(request: RunRequest) -> str:
        """Which scene's run this is."""
        if request.subagent_id is not None:
            return "lost" if request.query == "Go on." else "follow"
        name = re.findall(r"scenario: ([\w-]+)", request.query)[0]
        if name == "remember" and request.repo_path is not None:
            return "prompts"
        if name != "dump":
            return str(name)
        return "cancel" if "sleep" in request.query else "shell" if "out.txt" in request.query else "secrets"

    async def cancel(self, run_id: str, *, user_id: str | None, actor: str = "service") -> RunRecord:
        for process in self.processes[self.survivors :]:
            process.kill()
            process.wait()
        return await super().cancel(run_id, user_id=user_id, actor=actor)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@dataclass
class Provider:
    """The scripted provider: one gate, and the keys that came."""

    actors: Actors
    requests: list[Key] = field(default_factory=list)

    def ask(self) -> None:
        """A request comes in."""
        self.requests.append(Key(KEY))

    async def reached(self, gate: str, *, timeout: float = 30.0) -> None:
        assert gate == "gate"

    async def release(self, gate: str, *, times: int | None = None) -> None:
        for run_id, record in self.actors.runs.items():
            if "scenario: gate" in record.query:
                self.actors.emit(run_id, MessageDelta(text="Behind.", message_id="m"), end(TEXTS["gate"]))


def stage(tmp_path: Path, leftovers: Callable[[], list[str]] = list) -> Stage:
    """The stage; its service is an ``Actors``."""
    paths = Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run")
    for directory in (paths.state_dir, paths.runtime_dir, tmp_path / "repo"):
        directory.mkdir()
    (tmp_path / "repo" / "a.txt").write_text("a")
    actors = Actors(paths)
    provider = Provider(actors)
    actors.asked = provider.ask

    async def left() -> list[str]:
        return leftovers()

    return Stage(
        adapter=BenchAdapter(),
        runs=actors,
        changes=actors,
        provider=provider,
        spoken=lambda name: TEXTS.get(name, ""),
        usage=Usage(prompt=1200, cached=300, output=6),
        key=KEY,
        paths=paths,
        repo=tmp_path / "repo",
        leftovers=left,
    )
