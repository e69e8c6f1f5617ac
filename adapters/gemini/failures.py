"""Why a run failed, from what the CLI says about it and from its exit code; a pure table with tests of its own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orchestrator.adapterkit.failures import ADVICE, with_words
from orchestrator.events import ErrorReason

HTTP_STATUSES = (400, 401, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504, 529)
_OF_EXIT_CODE = {status & 0xFF: status for status in HTTP_STATUSES}
"""The CLI ends with the HTTP status of the failed request, of which eight bits are left."""

_ERROR_OBJECT = re.compile(r'\{\s*"error"\s*:')
_STATUS = re.compile(r"\bstatus: ([45]\d\d)\b")
_RESUME = re.compile(r"error resuming session|invalid session identifier|no previous sessions", re.IGNORECASE)
_REFUSED = re.compile(
    r"API_KEY_INVALID|api key (not valid|expired|not found)|UNAUTHENTICATED|PERMISSION_DENIED|reported as leaked",
    re.IGNORECASE,
)
_LOGGED_OUT = re.compile(r"set an auth method|invalid auth method|manual authorization is required", re.IGNORECASE)
_CREDIT = re.compile(
    r"credits? (are|is) depleted|INSUFFICIENT_\w{0,40}CREDITS|billing (account|is) .{0,200}disabled"
    r"|prepay(ment)? credits",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"RESOURCE_EXHAUSTED|exceeded your current quota|exhausted your (daily quota|capacity)"
    r"|to increase your limits|rate.?limit|too many requests",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"NOT_FOUND|model not found|is not found for API version", re.IGNORECASE)
_PROVIDER = re.compile(
    r"UNAVAILABLE|overloaded|fetch failed|terminated|socket|ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|premature close"
    r"|incomplete json|without a finish reason|empty response|internal error|timed? ?out",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is known of a failure: the CLI's own words, and the exit code (128+n for signal n; None: not known)."""

    text: str
    exit_code: int | None = None

    @property
    def status(self) -> int | None:
        """The provider's HTTP status: in the words, else in the exit code."""
        code = api_error(self.text).get("code")
        if isinstance(code, int):
            return code
        if shown := _STATUS.search(self.text):
            return int(shown.group(1))
        return _OF_EXIT_CODE.get(-1 if self.exit_code is None else self.exit_code)

    @property
    def said(self) -> str:
        """The words without their wrapping."""
        message = api_error(self.text).get("message")
        text = message if isinstance(message, str) else re.sub(r"^\[API Error: (.*?)\](?=\n|$)", r"\1", self.text)
        return " ".join(text.split())


def api_error(text: str) -> dict[str, Any]:
    """The provider's error object somewhere in ``text``, the innermost one; empty when there is none."""
    found: dict[str, Any] = {}
    for _ in range(3):  # errors come wrapped in errors, as text
        start = _ERROR_OBJECT.search(text)
        try:
            body = json.JSONDecoder().raw_decode(text, start.start())[0] if start else {}
        except (ValueError, RecursionError):
            break
        if not isinstance(inner := body.get("error"), dict):
            break
        found = {**found, **inner}
        text = str(inner.get("message", ""))
    return found


def reason_of(failure: Failure) -> ErrorReason:
    """The reason, most telling sign first: a refused key is a 400 like any other bad request."""
    text, status = failure.text, failure.status
    if failure.exit_code == 42 and _RESUME.search(text):
        return "resume_failed"
    if _CREDIT.search(text) or status == 402:
        return "credit_exhausted"
    if status in {401, 403} or _REFUSED.search(text):
        return "auth_rejected"
    if failure.exit_code == 41 or _LOGGED_OUT.search(text):
        return "auth_required"
    if status == 429 or (status is None and _LIMIT.search(text)):
        return "rate_limited"
    if (status or 0) >= 500 or status == 499:
        return "provider_unavailable"
    if status is None and _PROVIDER.search(text):
        return "provider_unavailable"
    return "cli_failed"


_ADVICE: dict[ErrorReason, str] = {
    **ADVICE,  # but podmentor knows no subscription to log in with
    "auth_rejected": "The provider refused the key. Check the one that is configured for this backend.",
    "auth_required": "There is nothing to log in with. Set a key for this backend.",
    "rate_limited": "The provider's rate limit or quota is reached. Wait and run it again, or use another key.",
}
_EXITS = {
    42: "Gemini CLI did not take the prompt as it is.",
    52: "Gemini CLI refuses its settings.",
    53: "The agent reached its limit of turns. Split the task, or raise the limit.",
    54: "A tool failed in a way that the agent cannot go on from.",
    55: "Gemini CLI does not trust the directory that it was started in.",
    130: "The agent was interrupted before it had finished.",
}


def message_of(reason: ErrorReason, failure: Failure) -> str:
    """A sentence for a person: what happened, what to do, and the CLI's own words."""
    missing = "The model does not exist or this key may not use it: choose another one."
    advice = (
        _ADVICE.get(reason)
        or (missing if failure.status == 404 or _NO_MODEL.search(failure.text) else None)
        or _EXITS.get(-1 if failure.exit_code is None else failure.exit_code)
        or "Gemini CLI could not finish the run."
    )
    return with_words(advice, "Gemini CLI", failure.said)
