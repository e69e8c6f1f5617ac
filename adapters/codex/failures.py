"""Why a run failed, from what the CLI says about it; a pure table with tests of its own."""

from __future__ import annotations

import json
import re
from typing import Any

from orchestrator.adapterkit.failures import ADVICE, with_words
from orchestrator.events import ErrorReason

_STATUS = re.compile(r"(?:unexpected|last) status:? (\d{3})\b")
_RESUME = re.compile(r"no rollout found|thread/resume failed|no (?:saved )?session found", re.IGNORECASE)
_CREDIT = re.compile(
    r"quota exceeded|exceeded your current quota|insufficient_quota|credit balance"
    r"|out of credits|billing|budget (?:reached|exceeded)",
    re.IGNORECASE,
)
_LOGGED_OUT = re.compile(r"missing environment variable|not logged in|codex login|log in again", re.IGNORECASE)
_REFUSED = re.compile(
    r"invalid_api_key|incorrect api key|token could not be refreshed|refresh token"
    r"|to use codex with your chatgpt plan",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"usage limit|rate.?limit|too many requests", re.IGNORECASE)
_ENDING = re.compile(r"incomplete response returned, reason: (\w+)", re.IGNORECASE)
_PROVIDER = re.compile(
    r"stream disconnected|high demand|at capacity|capacity is unavailable|overloaded|idle timeout|timed? ?out"
    r"|error sending request|connection (?:failed|refused|reset|closed)|network|transport error|server_error"
    r"|internal server error|bad gateway|service unavailable|routing discovery failed",
    re.IGNORECASE,
)


def status_of(text: str) -> int | None:
    """The provider's HTTP status, if the CLI says it: of a 500 it does not."""
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def said(message: str) -> str:
    """The CLI's words; it shows some answers of the provider as they came, as JSON."""
    try:
        body: Any = json.loads(message)
        error = body["error"]
        code = f" ({error['code']})" if error.get("code") else ""
        return f"{error['message']}{code}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return message


def reason_of(text: str) -> ErrorReason:
    """The reason, most telling sign first."""
    status = status_of(text)
    if _RESUME.search(text):
        return "resume_failed"
    if status == 402 or _CREDIT.search(text):
        return "credit_exhausted"
    if _LOGGED_OUT.search(text) and status is None:
        return "auth_required"
    if status in {401, 403} or _REFUSED.search(text):
        return "auth_rejected"
    if status == 429 or (status is None and _LIMIT.search(text)):
        return "rate_limited"
    if _ENDING.search(text):
        return "cli_failed"
    if (status or 0) >= 500 or (status is None and _PROVIDER.search(text)):
        return "provider_unavailable"
    return "cli_failed"


_ENDINGS = {
    "max_output_tokens": "The answer was longer than the model may write. Ask for less at once.",
    "content_filter": "The provider's content filter stopped the answer.",
}
_CONTEXT = re.compile(r"context window", re.IGNORECASE)
_MODEL = re.compile(r"model_not_found|the model .{0,200}does not exist|model is not supported", re.IGNORECASE)


def message_of(reason: ErrorReason, text: str) -> str:
    """A sentence for a person: what happened, what to do, and the CLI's own words."""
    return with_words(ADVICE.get(reason) or _other_advice(text), "Codex", text)


def _other_advice(text: str) -> str:
    if found := _ENDING.search(text):
        return _ENDINGS.get(found.group(1), "The answer is not complete.")
    if _CONTEXT.search(text):
        return "The conversation is too long for the model. Start a new one."
    if _MODEL.search(text):
        return "The model does not exist or this account may not use it. Choose another one."
    return "Codex could not finish the run."
