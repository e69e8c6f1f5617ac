"""Runs: what is asked for, the request made of it, and what is shown of a run."""

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field

from orchestrator.api.identity import Identity, is_plain_name
from orchestrator.api.models.base import BIGGEST, MAX_WAIT_SECONDS, Answer, Body, PlainName, Query
from orchestrator.config.hosts import egress_pattern
from orchestrator.config.models import model_name
from orchestrator.contract.runs import LimitsRequest, Outcome, RunRecord, RunRequest, RunState, WorkspaceMode
from orchestrator.errors import ForbiddenError, InvalidRequestError

METADATA_BYTES = 16 * 1024
LIST_CHARS = 1000

Count = Annotated[int, Field(gt=0, le=BIGGEST)]
Amount = Annotated[float, Field(gt=0, le=BIGGEST, allow_inf_nan=False)]


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


def _utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside of the calendar") from None


Moment = Annotated[AwareDatetime, AfterValidator(_utc)]
HostPattern = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(egress_pattern)]
Prompt = Annotated[
    str,
    AfterValidator(_prompt),
    Field(min_length=1, json_schema_extra={"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}),
]
"""A text that is not blank, without NUL; the configuration limits its length further."""


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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"backend": "claude-code", "query": "Fix the failing test.", "repo": "website"},
                {"backend": "codex", "query": "Now shorter.", "subagent_id": "0f3c7e9a4b5d4c1e8a6f2b7d9c0e1f2a"},
            ]
        }
    )

    backend: PlainName
    query: Prompt
    """The prompt."""
    model: Annotated[str, AfterValidator(model_name)] | None = None
    """By the name that the provider has for it; without it: as configured, else the CLI's own choice."""
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

    model_config = ConfigDict(json_schema_extra={"examples": [{"host": "pypi.org", "port": 443}]})

    host: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name; an address may be allowed by admins only."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Without it: 443 and 80."""


class WaitQuery(Query):
    """How to answer."""

    wait: bool = False
    """Answer when the run has finished."""
    timeout: Annotated[float, Field(gt=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = MAX_WAIT_SECONDS
    """With ``wait``: answer after so many seconds at the latest, with the run as it is then."""


class RunListQuery(Query):
    """Which runs."""

    backend: PlainName | None = None
    state: RunState | None = None
    outcome: Outcome | None = None
    subagent_id: PlainName | None = None
    since: Moment | None = None
    """Only runs that were accepted at this time or later (RFC 3339, with `Z` or an offset)."""
    until: Moment | None = None
    """Only runs that were accepted before this time."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    before: PlainName | None = None
    """``next_before`` of the page before."""
    prefix: PlainName | None = None
    """Only runs whose id begins with this."""


class RunLinks(Answer):
    """Paths of what can be asked of the run."""

    self: str
    events: str
    cancel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView(RunRecord):
    """One run.  Times are RFC 3339 UTC."""

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


def run_request(body: RunBody, who: Identity, *, key: str | None, trace: str | None) -> RunRequest:
    """The request that ``body`` is from this caller.

    Raises ForbiddenError (a path from somebody who is not the local owner), InvalidRequestError (a repo that is
    neither name nor path).
    """
    repo, path = _repo(body.repo, who)
    limits = LimitsRequest() if body.limits is None else LimitsRequest(**body.limits.model_dump())
    return RunRequest(
        backend=body.backend,
        query=body.query,
        model=body.model,
        user_id=who.user_id,
        subagent_id=body.subagent_id,
        repo=repo,
        repo_path=path,
        tier=body.tier,
        workspace=body.workspace,
        limits=limits,
        metadata=body.metadata,
        egress=None if body.egress is None else tuple(body.egress),
        idempotency_key=key,
        privileged=who.role == "admin",
        actor=who.actor,
        traceparent=trace,
    )


def _repo(repo: str | None, who: Identity) -> tuple[str | None, Path | None]:
    if repo is None:
        return None, None
    if not repo.startswith("/"):
        if not is_plain_name(repo):
            raise InvalidRequestError("repo: must be the name of a configured repo, or an absolute path")
        return repo, None
    if not who.local_owner:
        raise ForbiddenError("repo: only the local owner may give a path; use the name of a configured repo")
    if "\0" in repo:
        raise InvalidRequestError("repo: must not hold a NUL character")
    return None, Path(repo)


def run_url(run_id: str) -> str:
    """The path of the run in the API."""
    return f"/v1/runs/{run_id}"


def run_view(record: RunRecord) -> dict[str, Any]:
    """RunView."""
    url = run_url(record.run_id)
    links = {"self": url, "events": f"{url}/events", "cancel": f"{url}/cancel"}
    return {**{field.name: getattr(record, field.name) for field in fields(record)}, "links": links}


def run_in_list(record: RunRecord) -> dict[str, Any]:
    """RunView, long texts cut: a page of runs stays small."""
    view = run_view(record)
    for name in ("query", "final_text"):
        text = view[name]
        if text is not None and len(text) > LIST_CHARS:
            view[name] = text[:LIST_CHARS] + "…"
    return view


def waited_view(record: RunRecord) -> dict[str, Any]:
    """WaitedRun."""
    result = {
        "final_text": record.final_text or "",
        "is_error": record.outcome != "completed",
        **accounting(record),
        "error": record.error,
    }
    return {"run": run_view(record), "envelope": record.envelope(), "result": result}


def accounting(record: RunRecord) -> dict[str, Any]:
    """tokens, cost_usd and turns of a run, as far as its CLI has reported them."""
    usage = record.usage
    return {
        "tokens": dict(usage.get("tokens") or {}),
        "cost_usd": usage.get("cost_usd"),
        "turns": usage.get("turns"),
    }
