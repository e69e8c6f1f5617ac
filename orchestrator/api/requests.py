"""What a request says: its body and query as models, names out of its path, its headers; and in words what is wrong."""

import asyncio
import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar, get_args

from aiohttp import web
from pydantic import BaseModel, ValidationError

from orchestrator.api.identity import is_plain_name
from orchestrator.config.models import USER_ID_WORDS
from orchestrator.contract.traces import parse_traceparent
from orchestrator.errors import InvalidRequestError, NotFoundError

M = TypeVar("M", bound=BaseModel)
BODY_SECONDS: Final = 60.0
_SHOWN: Final = 10
_WITH_BYTES: Final = frozenset({"paths"})
"""Members in which a lone surrogate stands for a byte of a path; all other texts refuse them by themselves."""
_WORDS: Final = {
    "missing": "is missing",
    "string_pattern_mismatch": "must be a plain name: letters, digits, '.', '_' and '-', at most 64",
}
KEY_FORM = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")


async def read_body(request: web.Request, model: type[M]) -> M:
    """The JSON body as ``model``.  Raises InvalidRequestError; aiohttp itself refuses one that is too large."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.read()
    except TimeoutError:
        raise InvalidRequestError(f"the body did not arrive within {BODY_SECONDS:.0f} seconds") from None
    return parse_body(raw, model)


def parse_body(raw: bytes, model: type[M]) -> M:
    """``raw`` as ``model``.  Pure."""
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        if (b"\\ud" in raw or b"\\uD" in raw) and not model.model_fields.keys() & _WITH_BYTES:
            json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate is no text: it cannot be stored
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    except UnicodeError:
        raise InvalidRequestError("the body is not Unicode text in UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequestError(f"the body is not JSON: {error.msg} ({where})") from None
    except ValueError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return _validate(document, model)


def read_query(request: web.Request, model: type[M]) -> M:
    """The query parameters as ``model``.  Raises InvalidRequestError, also for one that is given twice."""
    names = [name for name, _ in request.query.items()]
    if len(names) != len(set(names)):
        raise InvalidRequestError("a query parameter is given twice")
    return _validate(dict(request.query), model)


def path_name(request: web.Request, part: str) -> str:
    """A name out of the path.  What cannot be a name does not exist: NotFoundError."""
    text = request.match_info[part]
    if not is_plain_name(text):
        raise NotFoundError("there is no such thing")
    return text


def idempotency_key(request: web.Request) -> str | None:
    """The Idempotency-Key header.  Raises InvalidRequestError."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not KEY_FORM.fullmatch(key):
        raise InvalidRequestError("Idempotency-Key must be 1 to 200 printable ASCII characters")
    return key


def trace_context(request: web.Request) -> str | None:
    """The traceparent header; one that is wrong counts as none, as its specification wants."""
    text = request.headers.get("traceparent", "").strip()
    return None if parse_traceparent(text) is None else text


def accepts(request: web.Request, media_type: str) -> bool:
    """Whether the Accept header asks for ``media_type`` by its name."""
    wanted = ",".join(request.headers.getall("Accept", []))
    return any(part.split(";")[0].strip().lower() == media_type for part in wanted.split(","))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _validate(document: Mapping[str, Any], model: type[M]) -> M:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _refusal(error, model) from None


def _refusal(error: ValidationError, model: type[BaseModel]) -> InvalidRequestError:
    """Every wrong member with the reason; never its value, which may be a secret in the wrong place."""
    found = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        path = [str(part)[:64] for part in item["loc"]]
        if item["type"] == "extra_forbidden":
            message = _unknown(path, model)
        else:
            message = _WORDS.get(item["type"], item["msg"].removeprefix("Value error, "))
            if item["type"] == "string_pattern_mismatch" and path[-1] == "user":
                message = f"must be a plain name or an e-mail address: {USER_ID_WORDS}"
        found.append({"field": ".".join(path), "message": message})
    sentence = "; ".join(f"{item['field']}: {item['message']}" for item in found[:_SHOWN])
    return InvalidRequestError(sentence, errors=found[:_SHOWN])


def _unknown(path: list[str], model: type[BaseModel]) -> str:
    known = list(_model_at(path[:-1], model).model_fields)
    close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    if close:
        return f"unknown; did you mean {close[0]!r}?"
    return f"unknown; known are {', '.join(known)}" if known else "unknown; nothing is known here"


def _model_at(path: list[str], model: type[BaseModel]) -> type[BaseModel]:
    for part in path:
        annotation = model.model_fields[part].annotation
        choices = [annotation, *get_args(annotation)]
        model = next(choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel))
    return model
