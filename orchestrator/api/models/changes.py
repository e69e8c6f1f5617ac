"""What the agent of a conversation has changed, and what is to become of it."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from orchestrator.api.models.base import Answer, Body, PlainName, Query
from orchestrator.contract.changes import CommitInfo, FileChange, OnConflict

MAX_PATHS = 10_000
MAX_PATH_CHARS = 4096


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
