"""Each backend as a tool for a model: two arguments in, the envelope out."""

from typing import Any, Final

from aiohttp import web

from orchestrator.api import keys
from orchestrator.api.bodies import idempotency_key, path_name, read_body, read_query, trace_context
from orchestrator.api.models.requests import MAX_WAIT_SECONDS, NoQuery, ToolArgs
from orchestrator.api.models.responses import ToolList, ToolResultView
from orchestrator.api.routes.runs import IDEMPOTENCY, SUBMIT_ERRORS, TRACEPARENT
from orchestrator.api.routing import Header, Reply, Route, json_answer
from orchestrator.api.submission import tool_request
from orchestrator.api.views import tool_view
from orchestrator.api.waiting import wait_for_end
from orchestrator.errors import UnknownBackendError

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
_REPO: Final = Header(
    name="X-Podmentor-Repo",
    description="The name of a configured repo to work in. It is the program's choice, so no argument of the tool.",
)


async def list_tools(request: web.Request) -> web.StreamResponse:
    """GET /v1/tools."""
    read_query(request, NoQuery)
    found = await request.app[keys.RUNS].backends(user_id=keys.identity_of(request).scope)
    tools = [
        {
            "name": info.tool_name,
            "backend": info.name,
            "description": f"Delegate a focused coding task to the {info.name} agent. It works in its own container,"
            " on its own copy of the repo, and answers when it is done.",
            "input_schema": INPUT_SCHEMA,
        }
        for info in found
    ]
    return json_answer({"tools": tools})


async def call_tool(request: web.Request) -> web.StreamResponse:
    """POST /v1/tools/{tool_name}."""
    app, who = request.app, keys.identity_of(request)
    read_query(request, NoQuery)
    backend = await _backend(request)
    args = await read_body(request, ToolArgs)
    wanted = tool_request(
        args,
        backend,
        who,
        app[keys.CONFIG].server,
        repo=request.headers.get("X-Podmentor-Repo"),
        key=idempotency_key(request),
        trace=trace_context(request),
    )
    record = await app[keys.RUNS].submit(wanted)
    return json_answer(tool_view(await wait_for_end(request, record.run_id, timeout=MAX_WAIT_SECONDS)))


async def _backend(request: web.Request) -> str:
    name = path_name(request, "tool_name")
    found = await request.app[keys.RUNS].backends(user_id=keys.identity_of(request).scope)
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
        replies=(Reply(description="One per enabled backend.", model=ToolList),),
    ),
    Route(
        method="POST",
        path="/v1/tools/{tool_name}",
        handler=call_tool,
        tag="tools",
        summary="Call a tool",
        description="Waits for the end of the run. A run that fails is a good answer with `is_error`: the model is to"
        " read it. With an `Idempotency-Key` a call that was cut can be repeated: it waits for the same run.",
        body=ToolArgs,
        headers=(_REPO, IDEMPOTENCY, TRACEPARENT),
        errors=SUBMIT_ERRORS,
        replies=(Reply(description="The outcome.", model=ToolResultView),),
    ),
)
