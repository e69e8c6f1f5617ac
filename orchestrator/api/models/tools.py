"""Backends as tools for a model."""

from typing import Any

from orchestrator.api.models.base import Answer, Body, PlainName
from orchestrator.api.models.runs import Prompt, accounting
from orchestrator.contract.runs import Outcome, RunRecord, RunState


class ToolArgs(Body):
    """Arguments of a tool: exactly these."""

    query: Prompt
    """The task, in full: the agent sees nothing else of the conversation around it."""
    subagent_id: PlainName | None = None
    """Continue this conversation."""


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


def tool_view(record: RunRecord) -> dict[str, Any]:
    """ToolResultView."""
    of_usage = accounting(record)
    of_run = {name: getattr(record, name) for name in ToolMetadata.model_fields.keys() - of_usage.keys()}
    return {
        "content": record.envelope(),
        "is_error": record.outcome != "completed",
        "metadata": {**of_run, **of_usage},
    }
