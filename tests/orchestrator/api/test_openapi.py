"""The document, the router, the models and the records say the same."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel, ValidationError

from orchestrator.api.models.events import EVENT_MODELS, EventEnvelope
from orchestrator.api.models.runs import LimitsBody, RunBody, RunListQuery
from orchestrator.api.routes import ROUTES
from orchestrator.config.models import PLAIN_NAME
from orchestrator.contract.adapter import BackendInfo, Capabilities
from orchestrator.contract.changes import FileChange
from orchestrator.contract.runs import LimitsRequest, RunFilter, RunRecord, RunRequest, SubagentRecord
from orchestrator.contract.types import ResourceLimits
from orchestrator.credentials.byo_key import check_key
from orchestrator.errors import InvalidRequestError
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


def operations() -> list[tuple[str, dict[str, Any]]]:
    """All of them, with their names in the document."""
    return [
        (f"{method.upper()} {path}", operation)
        for path, found in SPEC["paths"].items()
        for method, operation in found.items()
    ]


def parameters(place: str) -> list[tuple[str, dict[str, Any]]]:
    """Those in ``place`` (path, query, header) of all operations."""
    return [(name, one) for name, found in operations() for one in found["parameters"] if one["in"] == place]


def test_parameters_in_a_url_have_the_form_that_the_service_reads() -> None:
    for name, parameter in parameters("query"):
        if parameter["name"] == "paths":
            [(media_type, content)] = parameter["content"].items()
            assert (media_type, content["schema"]["type"]) == ("application/json", "array")
        else:
            assert parameter["schema"]["type"] in {"string", "integer", "number", "boolean"}, name
            assert parameter["schema"].get("default", "") is not None
    assert {parameter["schema"]["pattern"] for _, parameter in parameters("path")} == {PLAIN_NAME}


def test_the_forms_of_headers_are_declared() -> None:
    forms = {parameter["name"]: parameter["schema"].get("pattern", "") for _, parameter in parameters("header")}
    for name, good, bad in (
        ("Idempotency-Key", ("k", "a b", "k" * 200), ("", " a", "k" * 201, "ä")),
        ("Last-Event-ID", ("0", "41"), ("x", "-1", "1 2", "9" * 16)),
        ("X-Podmentor-User", ("alice",), ("", "a/b", ".a")),
        ("X-Podmentor-Repo", ("website",), ("", "/etc", "a b")),
    ):
        assert all(re.search(forms[name], text) for text in good), name
        assert not any(re.search(forms[name], text) for text in bad), name


def test_the_form_of_a_key_is_declared() -> None:
    form = SPEC["components"]["schemas"]["KeyBody"]["properties"]["api_key"]["pattern"]
    for text in ("k" * 8, "k" * 4096, "  sk-test-12345\n", "", "k" * 7, "k" * 4097, "sk test 12345", "sk-tést-12345"):
        try:
            check_key(text)
        except InvalidRequestError:
            assert not re.search(form, text), text
        else:
            assert re.search(form, text), text


def test_prompts_that_are_refused_do_not_match_the_schema() -> None:
    schema = SPEC["components"]["schemas"]["RunBody"]["properties"]["query"]
    for text in ("x", " a\nb ", "", " \n", "a\0b", "\0"):
        try:
            RunBody(backend="codex", query=text)
        except ValidationError:
            assert not re.search(schema["pattern"], text)
        else:
            assert re.search(schema["pattern"], text)


def test_streams_are_declared_as_text_and_say_of_what() -> None:
    for name in ("GET /v1/runs/{run_id}/events", "GET /ui/plugins/external_agent/runs/{run_id}/events"):
        [content] = [operation["responses"]["200"]["content"] for found, operation in operations() if found == name]
        assert set(content) == {"text/event-stream", "application/x-ndjson"}
        for declared in content.values():
            assert declared["schema"] == {"type": "string"}
            assert declared["x-itemSchema"] == {"$ref": "#/components/schemas/Event"}


def test_every_answer_declares_its_headers_and_every_large_body_its_refusal() -> None:
    for name, operation in operations():
        for status, reply in operation["responses"].items():
            assert "X-Request-Id" in reply["headers"]
            assert ("WWW-Authenticate" in reply["headers"]) is (status == "401")
            assert ("Retry-After" in reply["headers"]) is (status == "429")
        assert ("413" in operation["responses"]) is ("requestBody" in operation), name
    created = SPEC["paths"]["/v1/runs"]["post"]["responses"]
    assert all("Location" in created[status]["headers"] for status in ("200", "202"))
    assert SPEC["servers"][0]["url"] == "/"


def test_examples_are_good() -> None:
    shown = 0
    for model in {route.body for route in ROUTES if route.body is not None}:
        for example in SPEC["components"]["schemas"][model.__name__].get("examples", []):
            model.model_validate(example)
            shown += 1
    assert shown >= 5


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
