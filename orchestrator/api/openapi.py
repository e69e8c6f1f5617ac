"""The OpenAPI 3.1 document, made from the route table and the models.  Pure."""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from orchestrator.api.models.events import Event
from orchestrator.api.models.responses import Problem
from orchestrator.api.problems import PROBLEM_TYPE
from orchestrator.api.routing import Reply, Route
from orchestrator.errors import (
    ForbiddenError,
    InvalidRequestError,
    PodmentorError,
    StorageError,
    UnauthorizedError,
)

_REF: Final = "#/components/schemas/{model}"
_ACT_FOR: Final = {
    "name": "X-Podmentor-User",
    "in": "header",
    "required": False,
    "description": "The user for whom to act; only for tokens with the role `service`.",
    "schema": {"type": "string"},
}


def build_spec(routes: Iterable[Route], *, version: str) -> dict[str, Any]:
    """The whole document."""
    table = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "podmentor",
            "version": version,
            "description": "Runs coding-agent CLIs, each in its own container, behind one durable event stream.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(table),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
    return {name: _markdown(value) for name, value in document.items()}


def _markdown(value: Any) -> Any:
    """Descriptions come from docstrings, whose double backticks are single ones here."""
    match value:
        case dict():
            return {key: _markdown(item) for key, item in value.items()}
        case list():
            return [_markdown(item) for item in value]
        case str():
            return value.replace("``", "`")
        case _:
            return value


def _schemas(routes: tuple[Route, ...]) -> dict[str, Any]:
    bodies = {route.body for route in routes if route.body is not None}
    answers: set[type[BaseModel]] = {
        reply.model for route in routes for reply in route.replies if reply.model is not None
    }
    answers |= {Event, Problem}
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((model, "validation") for model in sorted(bodies, key=_name)),
        *((model, "serialization") for model in sorted(answers, key=_name)),
    ]
    _, schemas = models_json_schema(wanted, ref_template=_REF)
    defs: dict[str, Any] = schemas["$defs"]
    return defs


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": getattr(route.handler, "__name__", route.path),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": {**_replies(route.replies), **_errors(route)},
    }
    if route.description:
        operation["description"] = route.description
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    if route.public:
        operation["security"] = []
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.path.split("/")
        if part.startswith("{")
    ]
    schema = route.query.model_json_schema()
    in_query = [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", []),
            "description": member.pop("description", ""),
            "schema": {key: value for key, value in member.items() if key != "title"},
        }
        for name, member in schema.get("properties", {}).items()
    ]
    in_header = [
        {
            "name": header.name,
            "in": "header",
            "required": False,
            "description": header.description,
            "schema": {"type": "string"},
        }
        for header in route.headers
    ]
    return [*in_path, *in_query, *in_header, *([] if route.public else [_ACT_FOR])]


def _replies(replies: tuple[Reply, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reply in replies:
        entry = found.setdefault(str(reply.status), {"description": reply.description})
        if reply.media_type:
            schema = _ref(reply.model) if reply.model is not None else {"type": _type(reply.media_type)}
            entry.setdefault("content", {})[reply.media_type] = {"schema": schema}
    return found


def _type(media_type: str) -> str:
    return "object" if media_type == "application/json" else "string"


def _errors(route: Route) -> dict[str, Any]:
    always: tuple[type[PodmentorError], ...] = (ForbiddenError,)
    if not route.public:
        always = (InvalidRequestError, UnauthorizedError, ForbiddenError, StorageError)
    by_status: dict[int, set[str]] = {500: {"internal"}}
    for error in (*always, *route.errors):
        by_status.setdefault(error.status, set()).add(error.code)
    taken = {reply.status for reply in route.replies}
    return {
        str(status): {
            "description": "Code " + " or ".join(f"`{code}`" for code in sorted(codes)),
            "content": {PROBLEM_TYPE: {"schema": _ref(Problem)}},
        }
        for status, codes in sorted(by_status.items())
        if status not in taken
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
