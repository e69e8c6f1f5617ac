"""The document, the router, the models and the records say the same."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

from orchestrator.api.models.events import EVENT_MODELS, EventEnvelope
from orchestrator.api.models.runs import LimitsBody, RunBody, RunListQuery
from orchestrator.api.routes import ROUTES
from orchestrator.contract.adapter import BackendInfo, Capabilities
from orchestrator.contract.changes import FileChange
from orchestrator.contract.runs import LimitsRequest, RunFilter, RunRecord, RunRequest, SubagentRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.events import KINDS, AgentEvent, EventRecord
from tests.orchestrator.api.answers import promised
from tests.orchestrator.api.harness import SPEC, Api


def names(record: Any) -> set[str]:
    """The members of a record or a model."""
    return set(record.model_fields) if issubclass(record, BaseModel) else {field.name for field in fields(record)}


def test_the_document_is_valid_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(SPEC).validate()
    assert SPEC["openapi"].startswith("3.1")


async def test_it_is_served_to_everybody(api: Api) -> None:
    assert (await api.get("/openapi.json", who=None)).json == SPEC


async def test_router_and_document_have_the_same_routes(api: Api) -> None:
    runner = api.servers._runner
    registered = {
        (route.method, route.resource.canonical) for route in runner.app.router.routes() if route.resource is not None
    }
    documented = {(method.upper(), path) for path, operations in SPEC["paths"].items() for method in operations}
    assert registered == documented
    assert len(registered) == len(ROUTES)


def test_operations_are_named_once_and_summed_up() -> None:
    operations = [operation for found in SPEC["paths"].values() for operation in found.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and operation["tags"] for operation in operations)
    assert all(reply["description"] for operation in operations for reply in operation["responses"].values())


def test_every_private_operation_documents_401_and_403() -> None:
    for found in SPEC["paths"].values():
        for operation in found.values():
            private = operation.get("security") != []
            assert ("401" in operation["responses"]) is private
            assert "403" in operation["responses"]
            assert "500" in operation["responses"]


@pytest.mark.parametrize(
    ("schema", "record", "more"),
    [
        ("RunView", RunRecord, {"links"}),
        ("ResourceLimits", ResourceLimits, set()),
        ("SubagentRecord", SubagentRecord, set()),
        ("FileChange", FileChange, set()),
        ("BackendInfo", BackendInfo, set()),
        ("Capabilities", Capabilities, set()),
    ],
)
def test_records_are_answered_whole_and_closed(schema: str, record: type[Any], more: set[str]) -> None:
    documented = SPEC["components"]["schemas"][schema]
    assert set(documented["properties"]) == set(documented["required"]) == names(record) | more
    assert documented["additionalProperties"] is False


def test_the_docstrings_of_a_records_members_describe_the_answers_members() -> None:
    for schema in ("RunView", "FileChange"):
        members = SPEC["components"]["schemas"][schema]["properties"]
        assert any("description" in member for member in members.values())
    egress = SPEC["components"]["schemas"]["RunView"]["properties"]["egress"]
    assert egress["description"].startswith("Host patterns that the run may reach")


def test_the_shape_of_every_answer_is_the_recorded_one() -> None:
    """A record that changes changes what clients get: the file beside this test changes in the same commit."""
    assert promised(SPEC) == json.loads(Path(__file__).with_name("answers.json").read_text())


@pytest.mark.parametrize(
    ("model", "record", "more"),
    [
        (EventEnvelope, EventRecord, {"-data"}),
        (LimitsBody, LimitsRequest, set()),
        (RunBody, RunRequest, {"-user_id", "-repo_path", "-idempotency_key", "-privileged", "-actor", "-traceparent"}),
        (RunListQuery, RunFilter, {"-user_id"}),
    ],
)
def test_models_and_records_have_the_same_members(model: type[Any], record: type[Any], more: set[str]) -> None:
    """``more``: what the model leaves out of the record (``-``)."""
    assert names(model) == names(record) - {name[1:] for name in more}


def test_there_is_one_model_per_kind_of_event() -> None:
    assert tuple(model.model_fields["kind"].annotation.__args__[0] for model in EVENT_MODELS) == KINDS  # type: ignore[union-attr]
    assert len(EVENT_MODELS) == len(get_args(AgentEvent))
    for model, event in zip(EVENT_MODELS, get_args(AgentEvent), strict=True):
        data = model.model_fields["data"].annotation
        assert data is not None
        if event.kind != "status":
            assert names(data) == names(event) - {"parent_tool_call_id"}


def test_the_document_has_no_references_into_nothing() -> None:
    text = json.dumps(SPEC)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in SPEC["components"]["schemas"]
