"""Errors as ``application/problem+json`` (RFC 9457).  Pure."""

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import PodmentorError

PROBLEM_TYPE: Final = "application/problem+json"
_CORE: Final = frozenset({"type", "title", "status", "detail", "code", "request_id"})


class Problem(BaseModel):
    """An error (RFC 9457); further members belong to the code."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    title: str
    status: int
    detail: str
    """For people."""
    code: str
    """For programs; stable."""
    request_id: str
    """Find it in the service's log."""


def problem(*, code: str, status: int, detail: str, request_id: str, details: dict[str, Any] | None = None) -> bytes:
    """The body.  ``details`` become further members; they never replace one that the form itself has."""
    body = {
        **{name: value for name, value in (details or {}).items() if name not in _CORE},
        "type": f"urn:podmentor:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id,
    }
    return json.dumps(body, default=str).encode()


def problem_of(error: PodmentorError, request_id: str) -> bytes:
    """The body for an error that was raised on purpose."""
    return problem(
        code=error.code, status=error.status, detail=error.message, request_id=request_id, details=error.details
    )


def headers_of(error: PodmentorError) -> dict[str, str]:
    """Headers that the status asks for."""
    if error.status == 401:
        return {"WWW-Authenticate": 'Bearer realm="podmentor"'}
    retry = error.details.get("retry_after")
    return {} if retry is None else {"Retry-After": str(max(1, round(float(retry))))}
