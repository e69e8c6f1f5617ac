"""Backends as tools for a model."""

from typing import Any, Literal

from pydantic import ConfigDict

from orchestrator.api.models.base import Answer, Body, Query
from orchestrator.api.models.runs import Prompt, accounting
from orchestrator.contract.runs import Outcome, RunRecord, RunState


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
