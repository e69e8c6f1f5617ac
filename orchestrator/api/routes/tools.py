"""Each backend as a tool for a model: two arguments in, the envelope out."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import ConfigDict

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.identity import is_plain_name
from orchestrator.api.models.base import MAX_WAIT_SECONDS, Answer, Body, NoQuery, Query
from orchestrator.api.models.runs import Prompt, accounting
from orchestrator.api.requests import idempotency_key, path_name, read_body, read_query, trace_context
from orchestrator.api.routes.runs import IDEMPOTENCY, SUBMIT_ERRORS, TRACEPARENT, check_query, wait_for_end
from orchestrator.api.routing import Header, Reply, Route
from orchestrator.config.models import PLAIN_NAME
from orchestrator.contract.adapter import BackendInfo
from orchestrator.contract.runs import Outcome, RunRecord, RunRequest, RunState, SubagentRecord
from orchestrator.errors import InvalidRequestError, NotFoundError, UnknownBackendError

INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "The task, in full: the agent sees nothing else of this conversation.",
        },
        "subagent_id": {
            "type": "string",
            "description": "Continue an earlier conversation: the Subagent ID from its answer.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}
STRICT_SCHEMA: Final[dict[str, Any]] = {
    **INPUT_SCHEMA,
    "properties": {
        **INPUT_SCHEMA["properties"],
        "subagent_id": {
            "type": ["string", "null"],
            "description": INPUT_SCHEMA["properties"]["subagent_id"]["description"] + " null: begin a new one.",
        },
    },
    "required": ["query", "subagent_id"],
}
_REPO: Final = Header(
    name="X-Podmentor-Repo",
    description="The name of a configured repo to work in. It is the program's choice, so no argument of the tool.",
    schema={"type": "string", "pattern": PLAIN_NAME, "maxLength": 64},
)


class ToolArgs(Body):
    """Arguments of a tool: exactly these."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "Fix the failing test."}]})

    query: Prompt
    """The task, in full: the agent sees nothing else of the conversation around it."""
    subagent_id: str | None = None
    """Continue this conversation.  One that does not exist is a mistake of the model, so the answer tells the model."""


class ToolsQuery(Query):
    """In which form."""

    form: Literal["tool", "function", "strict"] = "tool"
    """`tool`: with the backend and `input_schema`.  `function`: name, description and `parameters`, nothing else.
    `strict`: the same in the form that strict function calling demands: every member is required, and null where it
    would be left out."""


class ToolView(Answer):
    """A backend as a tool for a model."""

    name: str
    backend: str
    description: str
    input_schema: dict[str, Any]
    """JSON Schema of the arguments."""


class FunctionView(Answer):
    """The same for function calling."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""


class ToolList(Answer):
    """The tools, one per enabled backend."""

    tools: list[ToolView] | list[FunctionView]
    """The latter for the forms `function` and `strict`."""


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
    metadata: ToolMetadata | None
    """null: no run was made, because of a mistake in the arguments."""


def tool_view(record: RunRecord) -> dict[str, Any]:
    """ToolResultView of a run."""
    of_usage = accounting(record)
    of_run = {name: getattr(record, name) for name in ToolMetadata.model_fields.keys() - of_usage.keys()}
    return {
        "content": record.envelope(),
        "is_error": record.outcome != "completed",
        "metadata": {**of_run, **of_usage},
    }


def mistake_view(message: str) -> dict[str, Any]:
    """ToolResultView for arguments with which no run was made."""
    return {"content": f"Error (invalid_arguments): {message}", "is_error": True, "metadata": None}


async def list_tools(request: web.Request) -> web.StreamResponse:
    """GET /v1/tools."""
    form = read_query(request, ToolsQuery).form
    found = await request.app[context.RUNS].backends(user_id=context.identity_of(request).scope)
    return json_answer({"tools": [_tool(info, form) for info in found]})


def _tool(info: BackendInfo, form: str) -> dict[str, Any]:
    about = {
        "name": info.tool_name,
        "description": f"Delegate a focused coding task to the {info.name} agent. It works in its own container,"
        " on its own copy of the repo, and answers when it is done.",
    }
    if form == "tool":
        return {**about, "backend": info.name, "input_schema": INPUT_SCHEMA}
    return {**about, "parameters": INPUT_SCHEMA if form == "function" else STRICT_SCHEMA}


async def call_tool(request: web.Request) -> web.StreamResponse:
    """POST /v1/tools/{tool_name}."""
    who = context.identity_of(request)
    read_query(request, NoQuery)
    backend = await _backend(request)
    args = await read_body(request, ToolArgs)
    check_query(request, args.query)
    if (mistake := await _mistake(request, args, backend)) is not None:
        return json_answer(mistake_view(mistake))
    wanted = RunRequest(
        backend=backend,
        query=args.query,
        user_id=who.user_id,
        subagent_id=args.subagent_id,
        repo=_repo_name(request),
        idempotency_key=idempotency_key(request),
        privileged=who.role == "admin",
        actor=who.actor,
        traceparent=trace_context(request),
    )
    record = await request.app[context.RUNS].submit(wanted)
    return json_answer(tool_view(await wait_for_end(request, record.run_id, timeout=MAX_WAIT_SECONDS)))


async def _mistake(request: web.Request, args: ToolArgs, backend: str) -> str | None:
    """What is wrong with the conversation that the model names; None: nothing."""
    if args.subagent_id is None:
        return None
    try:
        found = await _subagent(request, args.subagent_id)
    except NotFoundError as error:
        return f"subagent_id: {error.message}. Use the Subagent ID of an earlier answer, or leave it out."
    if found.backend != backend:
        return f"subagent_id: this conversation is one of {found.backend}, not of {backend}: continue it with its tool."
    return None


async def _subagent(request: web.Request, subagent_id: str) -> SubagentRecord:
    if not is_plain_name(subagent_id):
        raise NotFoundError("there is no subagent with this id")
    user_id = context.identity_of(request).user_id
    return await request.app[context.RUNS].get_subagent(subagent_id, user_id=user_id)


def _repo_name(request: web.Request) -> str | None:
    """The repo that the program chose: a name only, whoever asks."""
    repo = request.headers.get("X-Podmentor-Repo")
    if repo is not None and not is_plain_name(repo):
        raise InvalidRequestError("X-Podmentor-Repo must be the name of a configured repo")
    return repo


async def _backend(request: web.Request) -> str:
    name = path_name(request, "tool_name")
    found = await request.app[context.RUNS].backends(user_id=context.identity_of(request).scope)
    for info in found:
        if info.tool_name == name:
            return info.name
    known = ", ".join(info.tool_name for info in found) or "none"
    raise UnknownBackendError(f"there is no such tool; enabled are: {known}")


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/tools",
        handler=list_tools,
        tag="tools",
        summary="The tools",
        query=ToolsQuery,
        replies=(Reply(description="One per enabled backend.", model=ToolList),),
    ),
    Route(
        method="POST",
        path="/v1/tools/{tool_name}",
        handler=call_tool,
        tag="tools",
        summary="Call a tool",
        description="Waits for the end of the run. A run that fails is a good answer with `is_error`, and so is a"
        " `subagent_id` that does not exist: the model is to read it. With an `Idempotency-Key` a call that was cut"
        " can be repeated: it waits for the same run.",
        body=ToolArgs,
        headers=(_REPO, IDEMPOTENCY, TRACEPARENT),
        errors=SUBMIT_ERRORS,
        replies=(Reply(description="The outcome.", model=ToolResultView),),
    ),
)
