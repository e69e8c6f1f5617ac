"""What a subagent has changed: listed, applied, discarded."""

import json
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer, Body, NoQuery, PlainName, Query
from orchestrator.api.requests import path_name, read_body, read_query
from orchestrator.api.routing import Reply, Route
from orchestrator.contract.changes import (
    ApplyRequest,
    ApplyResult,
    ChangeSelection,
    CommitInfo,
    CommitsForm,
    FileChange,
    OnConflict,
)
from orchestrator.errors import ConflictError, NotFoundError, StorageError

MAX_PATHS = 10_000
MAX_PATH_CHARS = 4096
_BASE: Final = "/v1/subagents/{subagent_id}"


def _path_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON list of paths, such as ["src","a.txt"]') from None


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


class DiscardBody(Body):
    """Which changes are to be dropped."""

    paths: ChangedPaths = Field(default_factory=list)
    """Files, or directories with all that is below them; none: all changes, and the agent's commits."""


class ApplyBody(Body):
    """Which changes are to reach the repo, and how."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"paths": ["src"], "on_conflict": "merge"}]})

    paths: ChangedPaths = Field(default_factory=list)
    """Files, or directories with all that is below them; none: all changes."""
    ignored: bool = False
    """Also files that git ignores; one that is named by its own path is always meant."""
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


class ChangeList(Answer):
    """All differences."""

    changes: list[FileChange]
    ignored: list[FileChange]
    """Those that git would ignore; they are only applied when asked for."""


class DiscardView(Answer):
    """What was dropped."""

    discarded: list[str]


class RunChange(Answer):
    """What one run did to one path."""

    path: str
    change: Literal["changed", "deleted", "restored"]
    """restored: the workspace has there again what the repo has."""


class RunChangeList(Answer):
    """What one run changed."""

    changes: list[RunChange]


class CommitList(Answer):
    """The agent's commits, newest first (at most 1000)."""

    commits: list[CommitInfo]


def change_list(changes: list[FileChange]) -> dict[str, Any]:
    """ChangeList."""
    return {
        "changes": [change for change in changes if not change.ignored],
        "ignored": [change for change in changes if change.ignored],
    }


async def get_changes(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}/changes."""
    query = read_query(request, ChangesQuery)
    subagent_id, scope = _target(request)
    found = await request.app[context.CHANGES].changes(subagent_id, user_id=scope, selection=_selection(query))
    return json_answer(change_list(found))


async def get_patch(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}/changes.patch."""
    query = read_query(request, PatchQuery)
    subagent_id, scope = _target(request)
    wanted = _selection(query, ignored=query.ignored)
    patch = await request.app[context.CHANGES].patch(subagent_id, user_id=scope, selection=wanted)
    return web.Response(body=patch, content_type="text/x-diff")


async def get_commits(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}/commits."""
    read_query(request, NoQuery)
    subagent_id, scope = _target(request)
    found = await request.app[context.CHANGES].commits(subagent_id, user_id=scope)
    return json_answer({"commits": found})


async def get_bundle(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}/commits.bundle."""
    return await _commits_file(request, "bundle", "application/octet-stream")


async def get_mailbox(request: web.Request) -> web.StreamResponse:
    """GET /v1/subagents/{subagent_id}/commits.patch."""
    return await _commits_file(request, "patches", "text/x-diff")


async def _commits_file(request: web.Request, form: CommitsForm, media_type: str) -> web.StreamResponse:
    read_query(request, NoQuery)
    subagent_id, scope = _target(request)
    data = await request.app[context.CHANGES].commits_file(subagent_id, user_id=scope, form=form)
    return web.Response(body=data, content_type=media_type)


async def apply_changes(request: web.Request) -> web.StreamResponse:
    """POST /v1/subagents/{subagent_id}/apply."""
    read_query(request, NoQuery)
    subagent_id, scope = _target(request)
    body = await read_body(request, ApplyBody)
    wanted = ApplyRequest(
        selection=ChangeSelection(paths=tuple(body.paths), ignored=body.ignored),
        on_conflict=body.on_conflict,
        dry_run=body.dry_run,
        branch=body.branch,
        message=body.message,
    )
    actor = context.identity_of(request).actor
    return json_answer(await request.app[context.CHANGES].apply(subagent_id, wanted, user_id=scope, actor=actor))


async def discard_changes(request: web.Request) -> web.StreamResponse:
    """POST /v1/subagents/{subagent_id}/discard."""
    read_query(request, NoQuery)
    subagent_id, scope = _target(request)
    body = await read_body(request, DiscardBody)
    actor = context.identity_of(request).actor
    dropped = await request.app[context.CHANGES].discard(subagent_id, tuple(body.paths), user_id=scope, actor=actor)
    return json_answer({"discarded": dropped})


async def get_run_changes(request: web.Request) -> web.StreamResponse:
    """GET /v1/runs/{run_id}/changes."""
    read_query(request, NoQuery)
    scope = context.identity_of(request).scope
    found = await request.app[context.CHANGES].changes_of_run(path_name(request, "run_id"), user_id=scope)
    return json_answer({"changes": [{"path": path, "change": change} for path, change in found.items()]})


async def roll_back(request: web.Request) -> web.StreamResponse:
    """POST /v1/subagents/{subagent_id}/rollback."""
    read_query(request, NoQuery)
    subagent_id, scope = _target(request)
    body = await read_body(request, RollbackBody)
    actor = context.identity_of(request).actor
    await request.app[context.CHANGES].rollback(subagent_id, body.run_id, user_id=scope, actor=actor)
    return web.Response(status=204)


def _target(request: web.Request) -> tuple[str, str | None]:
    return path_name(request, "subagent_id"), context.identity_of(request).scope


def _selection(query: ChangesQuery, *, ignored: bool = False) -> ChangeSelection:
    paths = (*query.paths, *([query.path] if query.path is not None else []))
    return ChangeSelection(paths=paths, ignored=ignored)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{_BASE}/changes",
        handler=get_changes,
        tag="changes",
        summary="What the workspace has changed",
        errors=(NotFoundError, StorageError),
        query=ChangesQuery,
        description="Bytes of a path that are not UTF-8 appear as the escapes `\\udc80` to `\\udcff`.",
        replies=(Reply(description="The changes.", model=ChangeList),),
    ),
    Route(
        method="GET",
        path=f"{_BASE}/changes.patch",
        handler=get_patch,
        tag="changes",
        summary="The same as a patch",
        errors=(NotFoundError, StorageError),
        query=PatchQuery,
        description="In git's format, binary content included: `git apply` makes of the repo what the agent has.",
        replies=(Reply(description="For `git apply`.", media_type="text/x-diff"),),
    ),
    Route(
        method="POST",
        path=f"{_BASE}/apply",
        handler=apply_changes,
        tag="changes",
        summary="Bring changes into the repo",
        errors=(NotFoundError, ConflictError, StorageError),
        body=ApplyBody,
        description="All of the chosen paths or, when one of them is in conflict, none: then the answer is 409 and its"
        " `files` say why.",
        replies=(Reply(description="What was done.", model=ApplyResult),),
    ),
    Route(
        method="POST",
        path=f"{_BASE}/discard",
        handler=discard_changes,
        tag="changes",
        summary="Drop changes",
        errors=(NotFoundError, ConflictError, StorageError),
        body=DiscardBody,
        description="The paths show again what the repo has. Without `paths` everything goes, the agent's commits too.",
        replies=(Reply(description="What was dropped.", model=DiscardView),),
    ),
    Route(
        method="GET",
        path="/v1/runs/{run_id}/changes",
        handler=get_run_changes,
        tag="changes",
        summary="What one run changed in the workspace",
        errors=(NotFoundError, StorageError),
        description="From the snapshots at the ends of the runs; the last 20 of a subagent are kept.",
        replies=(Reply(description="The paths.", model=RunChangeList),),
    ),
    Route(
        method="POST",
        path=f"{_BASE}/rollback",
        handler=roll_back,
        tag="changes",
        summary="Take the workspace back to the end of an earlier run",
        errors=(NotFoundError, ConflictError, StorageError),
        body=RollbackBody,
        replies=(Reply(status=204, description="Done.", media_type=""),),
    ),
    Route(
        method="GET",
        path=f"{_BASE}/commits",
        handler=get_commits,
        tag="changes",
        summary="The commits that the agent made",
        errors=(NotFoundError, StorageError),
        replies=(Reply(description="Newest first.", model=CommitList),),
    ),
    Route(
        method="GET",
        path=f"{_BASE}/commits.bundle",
        handler=get_bundle,
        tag="changes",
        summary="The same as a git bundle",
        errors=(NotFoundError, StorageError),
        replies=(Reply(description="For `git fetch`.", media_type="application/octet-stream"),),
    ),
    Route(
        method="GET",
        path=f"{_BASE}/commits.patch",
        handler=get_mailbox,
        tag="changes",
        summary="The same as a series of patches",
        errors=(NotFoundError, StorageError),
        replies=(Reply(description="For `git am`.", media_type="text/x-diff"),),
    ),
)
