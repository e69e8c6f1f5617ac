"""What requests may say: bodies and query parameters.  Unknown members are refused; OpenAPI is made from these."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    WithJsonSchema,
)

from orchestrator.config.hosts import egress_pattern
from orchestrator.config.models import PLAIN_NAME
from orchestrator.contract.changes import OnConflict
from orchestrator.contract.runs import RunState, WorkspaceMode

METADATA_BYTES = 16 * 1024
MAX_WAIT_SECONDS = 3600.0
_BIGGEST = 2**53
"""The largest whole number that every JSON reader keeps exact."""

PlainName = Annotated[str, Field(pattern=PLAIN_NAME)]
Count = Annotated[int, Field(gt=0, le=_BIGGEST)]
Amount = Annotated[float, Field(gt=0, le=_BIGGEST, allow_inf_nan=False)]


def _prompt(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    return text


def _small(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value, ensure_ascii=False).encode()) > METADATA_BYTES:
        raise ValueError(f"must not be longer than {METADATA_BYTES} bytes as JSON")
    return value


def _whole(value: object) -> object:
    # Python takes True and 1.0 for 1, JSON does not
    if value is not None and type(value) is not int:
        raise ValueError("must be 0 or 1")
    return value


HostPattern = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(egress_pattern)]
Prompt = Annotated[str, AfterValidator(_prompt), Field(min_length=1)]


class Body(BaseModel):
    """Base of all bodies: strict, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class LimitsBody(Body):
    """Limits of this run.  Only an admin's may be wider than the configured ones."""

    memory_max_bytes: Count | None = None
    wall_clock_seconds: Amount | None = None
    idle_seconds: Amount | None = None
    """End the run after so long without output."""
    output_max_bytes: Count | None = None
    pids_max: Count | None = None
    cpus: Amount | None = None
    disk_max_bytes: Count | None = None
    """Of the home and of what the workspace has beyond the repo, together."""


class RunBody(Body):
    """One prompt to one backend."""

    backend: PlainName
    query: Prompt
    """The prompt."""
    subagent_id: PlainName | None = None
    """Continue this conversation."""
    repo: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A repo named in the configuration; only the local owner may give an absolute path instead."""
    tier: Annotated[Literal[0, 1] | None, BeforeValidator(_whole)] = None
    """0: shared outbound network. 1: none but the way to the model provider."""
    limits: LimitsBody | None = None
    egress: Annotated[list[HostPattern], Field(max_length=200)] | None = None
    """Tier 1: hosts that are all this run may reach (``api.example.com``, ``*.example.org``, with ``:PORT``); each must
    be covered by the configured ones. Empty: none."""
    workspace: WorkspaceMode | None = None
    metadata: Annotated[dict[str, Any], AfterValidator(_small)] = Field(default_factory=dict)
    """Yours; given back as it is, at most 16 KiB."""


class EgressBody(Body):
    """One host to allow."""

    host: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name; an address may be allowed by admins only."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Without it: 443 and 80."""


def _path_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON list of paths, such as ["src","a.txt"]') from None


MAX_PATHS = 10_000
MAX_PATH_CHARS = 4096


def _path_text(value: object) -> str:
    # pydantic's own str refuses lone surrogates, which stand for the bytes of a path that are not UTF-8
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH_CHARS:
        raise ValueError(f"must be a path of 1 to {MAX_PATH_CHARS} characters")
    return value


ChangedPath = Annotated[
    str,
    PlainValidator(_path_text),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_PATH_CHARS}),
]
ChangedPaths = Annotated[list[ChangedPath], Field(max_length=MAX_PATHS)]


class SelectionBody(Body):
    """Which changes."""

    paths: ChangedPaths = Field(default_factory=list)
    """Files, or directories with all that is below them; none: all changes."""
    ignored: bool = False
    """Also files that git ignores; one that is named by its own path is always meant."""


class DiscardBody(Body):
    """Which changes are to be dropped."""

    paths: ChangedPaths = Field(default_factory=list)
    """Files, or directories with all that is below them; none: all changes, and the agent's commits."""


class ApplyBody(SelectionBody):
    """Which changes are to reach the repo, and how."""

    on_conflict: OnConflict = "refuse"
    """merge: three-way, as git does it; theirs: take the agent's; ours: keep the repo's."""
    dry_run: bool = False
    """Only say what would be done."""
    branch: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Make a commit on this new branch; the work tree is not touched."""
    message: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """Of that commit."""


class RollbackBody(Body):
    """Where to go back to."""

    run_id: PlainName
    """The workspace becomes what it was at the end of this run."""


class GcBody(Body):
    """What may be removed."""

    older_than_days: Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] | None = None
    """Used last so many days ago; absent: the configured `storage.retention_days`."""
    unapplied: bool = False
    """Also conversations with changes that nobody has applied or discarded."""
    dry_run: bool = False


class ToolArgs(Body):
    """Arguments of a tool: exactly these."""

    query: Prompt
    """The task, in full: the agent sees nothing else of the conversation around it."""
    subagent_id: PlainName | None = None
    """Continue this conversation."""


class KeyBody(Body):
    """The user's own key for a backend."""

    api_key: Annotated[SecretStr, Field(min_length=1, max_length=8192)]
    """Kept encrypted, never given back."""


class Query(BaseModel):
    """Base of all query parameters: texts, so not strict; closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class NoQuery(Query):
    """No parameters."""


class UserQuery(Query):
    """Whose."""

    user: PlainName | None = None
    """Another user than the asking one; only for admins."""


class ExplainQuery(UserQuery):
    """Which credential."""

    backend: PlainName


class WaitQuery(Query):
    """How to answer."""

    wait: bool = False
    """Answer when the run has finished."""
    timeout: Annotated[float, Field(gt=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = MAX_WAIT_SECONDS
    """With ``wait``: answer 202 after so many seconds."""


class RunListQuery(Query):
    """Which runs."""

    backend: PlainName | None = None
    state: RunState | None = None
    subagent_id: PlainName | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    before: PlainName | None = None
    """``next_before`` of the page before."""
    prefix: PlainName | None = None
    """Only runs whose id begins with this."""


class SubagentListQuery(Query):
    """Which subagents."""

    prefix: PlainName | None = None
    """Only subagents whose id begins with this."""


class ChangesQuery(Query):
    """Which changes."""

    path: ChangedPath | None = None
    """Only this file, or what is below this directory."""
    paths: Annotated[ChangedPaths, BeforeValidator(_path_list)] = Field(default_factory=list)
    """Several of them, as a JSON list."""


class PatchQuery(ChangesQuery):
    """Which changes."""

    ignored: bool = False
    """Also files that git ignores; one that is named by its own path always comes."""


class EventsQuery(Query):
    """Which events, in which form."""

    after: Annotated[int, Field(ge=0, le=_BIGGEST)] = 0
    """Only events with a higher ``seq``; ``Last-Event-ID`` wins over this."""
    follow: bool = True
    """false: end after the events that exist now."""
    format: Literal["sse", "ndjson"] | None = None
    """Without it the Accept header decides."""


class ProbeQuery(Query):
    """Which backend to ask."""

    backend: PlainName
