"""Records and mappings as JSON answers."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from aiohttp import web


def json_answer(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """``value`` as a JSON response."""
    return web.Response(body=dumps(value), status=status, headers=headers, content_type="application/json")


def dumps(value: object) -> bytes:
    """ASCII JSON: text that is not Unicode (lone surrogates from a path or an agent) stays as an escape.

    NaN and the infinities, which JSON does not have, become null.
    """
    try:
        return json.dumps(value, allow_nan=False, default=_plain, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _plain(value: object) -> dict[Any, Any]:
    """Records and read-only mappings as dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case None | str() | int() | float():
            return value
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return {key: _finite(item) for key, item in _plain(value).items()}
