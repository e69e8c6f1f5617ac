"""The document, the router, the models and the records say the same."""

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

from orchestrator.api.models import changes as change_responses
from orchestrator.api.models import responses
from orchestrator.api.models.events import EVENT_MODELS, EventEnvelope
from orchestrator.api.models.requests import LimitsBody, RunBody, RunListQuery
from orchestrator.api.routes import ROUTES
from orchestrator.contract.adapter import BackendInfo, Capabilities
from orchestrator.contract.changes import FileChange
from orchestrator.contract.runs import LimitsRequest, RunFilter, RunRecord, RunRequest, SubagentRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.events import KINDS, AgentEvent, EventRecord
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
    ("model", "record", "more"),
    [
        (responses.RunView, RunRecord, {"links"}),
        (responses.LimitsView, ResourceLimits, set()),
        (responses.SubagentView, SubagentRecord, set()),
        (change_responses.ChangeView, FileChange, set()),
        (responses.BackendView, BackendInfo, set()),
        (responses.CapabilitiesView, Capabilities, set()),
        (EventEnvelope, EventRecord, {"-data"}),
        (LimitsBody, LimitsRequest, set()),
        (RunBody, RunRequest, {"-user_id", "-repo_path", "-idempotency_key", "-privileged", "-actor", "-traceparent"}),
        (RunListQuery, RunFilter, {"-user_id"}),
    ],
)
def test_models_and_records_have_the_same_members(model: type[Any], record: type[Any], more: set[str]) -> None:
    """``more``: what the model has beyond the record, or (``-``) leaves out."""
    left_out = {name[1:] for name in more if name.startswith("-")}
    added = {name for name in more if not name.startswith("-")}
    assert names(model) == names(record) - left_out | added


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
