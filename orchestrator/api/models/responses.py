"""What answers look like, for OpenAPI; ``views`` makes them.  A test holds the two and the records together."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.contract.credentials import LinkName
from orchestrator.contract.runs import Outcome, RunState, WorkspaceMode


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class LimitsView(Answer):
    """The limits in force, in bytes and seconds."""

    memory_max_bytes: int
    wall_clock_seconds: float
    idle_seconds: float | None
    start_seconds: float
    output_max_bytes: int
    pids_max: int
    cpus: float | None
    disk_max_bytes: int


class RunLinks(Answer):
    """Where to go from here."""

    self: str
    events: str
    cancel: str


class RunView(Answer):
    """One run.  Times are RFC 3339 UTC."""

    run_id: str
    subagent_id: str
    sandbox_id: str | None
    user_id: str
    backend: str
    query: str
    state: RunState
    outcome: Outcome | None
    tier: Literal[0, 1]
    repo: str | None
    workspace: WorkspaceMode
    limits: LimitsView
    egress: list[str] | None
    """Host patterns that the run may reach, those allowed later included; null: the network is open (tier 0)."""
    memory_enforcement: Literal["cgroup", "watchdog"] | None
    enforcement: dict[str, str]
    """How each limit is kept on this machine, by the limit's name: ``cgroup``, ``watchdog``, ``rlimit``, ``watch``,
    ``clock``, ``log``, or ``none``: it is not."""
    usage: dict[str, Any]
    """tokens, cost_usd and turns as the CLI tells them; as measured: peak_memory_bytes, peak_disk_bytes, peak_pids,
    cpu_seconds, output_bytes, duration_seconds."""
    final_text: str | None
    error: dict[str, Any] | None
    """``data`` of the event that ended the run badly."""
    exit_code: int | None
    cli_version: str | None
    credential_link: LinkName | None
    """Whose credential the run uses."""
    image_id: str | None
    metadata: dict[str, Any]
    queue_position: int | None
    last_seq: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    links: RunLinks


class RunPage(Answer):
    """Runs, newest first; ``query`` and ``final_text`` are cut after 1000 characters (then they end in an ellipsis)."""

    runs: list[RunView]
    next_before: str | None
    """``before`` of the next page; null: this is the last one."""


class ResultView(Answer):
    """The outcome in short."""

    final_text: str
    is_error: bool
    tokens: dict[str, int]
    cost_usd: float | None
    turns: int | None
    error: dict[str, Any] | None


class WaitedRun(Answer):
    """A finished run."""

    run: RunView
    envelope: str
    """``[Subagent ID: … - Use this ID to continue this conversation] `` and the final text."""
    result: ResultView


class SubagentView(Answer):
    """One conversation."""

    subagent_id: str
    user_id: str
    backend: str
    backend_session_id: str | None
    """The CLI's own session id."""
    repo: str | None
    workspace: WorkspaceMode
    created_at: str
    last_used_at: str
    run_ids: list[str]
    busy: bool
    """One of its runs has not finished."""


class SubagentList(Answer):
    """Conversations."""

    subagents: list[SubagentView]


class SessionEntry(Answer):
    """The CLI's session behind one subagent."""

    backend: str
    backend_session_id: str
    created_at: str
    last_used_at: str


class SessionMap(Answer):
    """By subagent id."""

    session_map: dict[str, SessionEntry]


class SessionMapView(Answer):
    """The session map in the documented shape."""

    external_agent: SessionMap


class CapabilitiesView(Answer):
    """What a backend can do."""

    streaming: bool
    deltas: bool
    thinking: bool
    resume: bool
    cost: bool
    mcp: bool
    byo_subscription: bool


class BackendView(Answer):
    """One enabled backend."""

    name: str
    tool_name: str
    image: str | None
    """Image id; null: not built."""
    image_tag: str | None
    cli_version: str | None
    capabilities: CapabilitiesView
    default_allowed_egress: list[str]
    auth: dict[str, Any]
    """link, authenticated and, when it is not, error: for the asking user."""
    capabilities_seen: dict[str, Any] | None
    """What `podmentor bench` saw of exactly this CLI version: cli_version, when, capabilities, timings (in seconds, on
    the machine where it ran); null: this version was not tried."""


class BackendList(Answer):
    """The enabled backends."""

    backends: list[BackendView]


class ProbeView(Answer):
    """Whether a backend's CLI is there and has something to log in with."""

    installed: bool
    authenticated: bool
    error: str | None = None
    """Why not; left out when all is well.  Never a secret."""


class ToolView(Answer):
    """A backend as a tool for a model."""

    name: str
    backend: str
    description: str
    input_schema: dict[str, Any]
    """JSON Schema of the arguments."""


class ToolList(Answer):
    """The tools, one per enabled backend."""

    tools: list[ToolView]


class ToolMetadata(Answer):
    """What is known beside the answer."""

    run_id: str
    subagent_id: str
    backend: str
    state: RunState
    outcome: Outcome | None
    tokens: dict[str, int]
    cost_usd: float | None
    turns: int | None
    cli_version: str | None
    error: dict[str, Any] | None
    started_at: str | None
    finished_at: str | None


class ToolResultView(Answer):
    """What the tool gives back to the model, and what is for the program around it."""

    content: str
    """The envelope."""
    is_error: bool
    metadata: ToolMetadata


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]
    instance: str
    """Tells services on one machine apart."""
    version: str


class Readiness(BaseModel):
    """Whether runs can be taken, and what stands in the way."""

    model_config = ConfigDict(extra="allow")

    ready: bool


class Problem(BaseModel):
    """An error (RFC 9457); further members belong to the code."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    title: str
    status: int
    detail: str
    """For people."""
    code: str
    """For programs; stable."""
    request_id: str
    """Find it in the service's log."""
