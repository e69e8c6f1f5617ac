"""The OpenAPI 3.1 document, made from the route table and the models.  Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import BaseModel, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from orchestrator.api.models.base import Answer
from orchestrator.api.models.events import Event
from orchestrator.api.problems import PROBLEM_TYPE, Problem
from orchestrator.api.routing import Header, Reply, Route
from orchestrator.config.models import PLAIN_NAME, USER_ID
from orchestrator.errors import (
    ForbiddenError,
    InvalidRequestError,
    PayloadTooLargeError,
    PodmentorError,
    StorageError,
    UnauthorizedError,
)

_ALL: Final = "_All"
_REF: Final = "#/components/schemas/{model}"
_NAME: Final = {"type": "string", "pattern": PLAIN_NAME, "maxLength": 64}
_COMMON: Final = (
    Header(
        name="X-Request-Id",
        description="The id under which the request is logged and answered: 1 to 64 letters, digits, `.`, `_` and `-`;"
        " any other is replaced.",
        schema={"type": "string", "examples": ["order-4711"]},
    ),
)
_ACT_FOR: Final = Header(
    name="X-Podmentor-User",
    description="The user for whom to act: a plain name or an e-mail address; only for tokens with the role `service`.",
    schema={"type": "string", "pattern": USER_ID, "maxLength": 64},
)
_SENT: Final[dict[int, dict[str, str]]] = {
    401: {"WWW-Authenticate": "Which kind of token to send."},
    429: {"Retry-After": "In how many seconds there may be room."},
}
_SENT_ALWAYS: Final = {"X-Request-Id": "Find it in the service's log."}


def build_spec(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document but for the version.  Blocks: pydantic reads the members' docstrings from the source files."""
    table = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "podmentor",
            "description": "Runs coding-agent CLIs, each in its own container, behind one durable event stream.",
        },
        "servers": [{"url": "/", "description": "The service that this document comes from."}],
        "paths": paths,
        "components": {
            "schemas": _schemas(table),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
    return {name: _markdown(value) for name, value in document.items()}


def with_version(spec: Mapping[str, Any], version: str) -> dict[str, Any]:
    """``spec`` as the document of a service of this version."""
    return {**spec, "info": {**spec["info"], "version": version}}


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
    answers = {reply.model for route in routes for reply in route.replies if reply.model is not None} | {Event, Problem}
    extended = {base for model in answers for base in model.__bases__ if is_dataclass(base)}
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((model, "validation") for model in sorted(bodies, key=_name)),
        (_members(answers | extended), "serialization"),
    ]
    _, schemas = models_json_schema(wanted, ref_template=_REF, schema_generator=_Schemas)
    found: dict[str, Any] = schemas["$defs"]
    for base in extended:  # pydantic reads the docstrings of a record's members, and not those of the one it extends
        described = found.pop(base.__name__)["properties"]
        for model in answers:
            if base in model.__bases__:
                for name, member in described.items():
                    found[model.__name__]["properties"][name] |= member
    del found[_ALL]
    return found


class _Schemas(GenerateJsonSchema):
    """What is answered has no defaults, and a record of the contract is answered with all of its members."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """With the default only in what is asked."""
        return super().default_schema(schema) if self.mode == "validation" else self.generate_inner(schema["schema"])

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,  # noqa: FBT001 -- pydantic calls it so
    ) -> bool:
        """Members of records are all there, whatever their defaults."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def _members(models: set[type[Any]]) -> type[BaseModel]:
    """A model that has them all as members: so records of the contract take over the settings of ``Answer``."""
    members: dict[str, Any] = {model.__name__: (model, ...) for model in sorted(models, key=_name)}
    return create_model(_ALL, __base__=Answer, **members)


def _name(model: type[Any]) -> str:
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
        {"name": part[1:-1], "in": "path", "required": True, "schema": _NAME}
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
            **_in_query(member),
        }
        for name, member in schema.get("properties", {}).items()
    ]
    headers = (*route.headers, *_COMMON, *(() if route.public else (_ACT_FOR,)))
    in_header = [
        {"name": header.name, "in": "header", "required": False, "description": header.description}
        | {"schema": header.schema}
        for header in headers
    ]
    return [*in_path, *in_query, *in_header]


def _in_query(member: dict[str, Any]) -> dict[str, Any]:
    """What a parameter looks like in a URL: there is no null in one, and a list is written as JSON."""
    schema = {key: value for key, value in member.items() if key != "title"}
    if "anyOf" in schema:
        [only] = [option for option in schema.pop("anyOf") if option != {"type": "null"}]
        schema |= only
        del schema["default"]
    if schema.get("type") == "array":
        return {"content": {"application/json": {"schema": schema}}}
    return {"schema": schema}


def _replies(replies: tuple[Reply, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reply in replies:
        headers = _headers(reply.status) | _described(reply.headers)
        entry = found.setdefault(str(reply.status), {"description": reply.description, "headers": headers})
        if reply.media_type:
            entry.setdefault("content", {})[reply.media_type] = _content(reply)
    return found


def _content(reply: Reply) -> dict[str, Any]:
    if reply.media_type != "application/json":
        # a stream: OpenAPI 3.1 cannot say of what, 3.2 says it with itemSchema
        items = {} if reply.model is None else {"x-itemSchema": _ref(reply.model)}
        return {"schema": {"type": "string"}, **items}
    return {"schema": {"type": "object"} if reply.model is None else _ref(reply.model)}


def _headers(status: int) -> dict[str, Any]:
    return _described({**_SENT_ALWAYS, **_SENT.get(status, {})})


def _described(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}


def _errors(route: Route) -> dict[str, Any]:
    always: tuple[type[PodmentorError], ...] = (ForbiddenError,)
    if not route.public:
        always = (InvalidRequestError, UnauthorizedError, ForbiddenError, StorageError)
    if route.body is not None:
        always = (*always, PayloadTooLargeError)
    by_status: dict[int, set[str]] = {500: {"internal"}}
    for error in (*always, *route.errors):
        by_status.setdefault(error.status, set()).add(error.code)
    taken = {reply.status for reply in route.replies}
    return {
        str(status): {
            "description": "Code " + " or ".join(f"`{code}`" for code in sorted(codes)),
            "headers": _headers(status),
            "content": {PROBLEM_TYPE: {"schema": _ref(Problem)}},
        }
        for status, codes in sorted(by_status.items())
        if status not in taken
    }


def _ref(model: type[Any]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
